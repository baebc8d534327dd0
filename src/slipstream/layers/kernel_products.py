"""`Products` by our kernels: norms, residuals and the gated MLP inside skinny products, a row's bits its own.

Shape letters: T packed tokens, D hidden, I inputs, O outputs, V vocabulary of a shard, P partial sums of squares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slipstream.kernels.draws import Choice, Draws
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.norms import add_norm, add_squares, pair_norms
from slipstream.kernels.plans import Plan, PlanKey, Workspace, default_plan, workspace
from slipstream.kernels.push import push_add_squares
from slipstream.kernels.skinny import Ready, Rms, skinny_linear
from slipstream.kernels.tuned import tuned_plans
from slipstream.layers.embedding import Lookup, Rows
from slipstream.layers.linear import Linear, RowLinear
from slipstream.layers.norm import RMSNorm
from slipstream.layers.products import Stream

DEPENDENT_LAUNCH_FROM = (9, 0)  # compute capability


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProducts:
    """The arithmetic around attention on one CUDA stream."""

    space: Workspace
    plans: Mapping[PlanKey, Plan]  # of weight shapes that were tuned; others take the default
    pdl: bool  # kernels start before the one in front has ended
    _defaults: dict[PlanKey, Plan] = field(default_factory=dict)

    def plan_of(self, linear: Linear, *, gated: bool = False) -> Plan:
        """How a weight is multiplied."""
        num_out, num_in = linear.shape
        key = (num_out, num_in, gated)
        if key in self.plans:
            return self.plans[key]
        if key not in self._defaults:
            self._defaults[key] = default_plan(num_out // (2 if gated else 1), num_in)
        return self._defaults[key]

    def begin(self, rows: Rows, follows: RMSNorm) -> Stream:
        """A stream of these rows."""
        x_TD, ids_T = _unread(rows)
        return Stream(*add_squares(x_TD, follows.weight, ids_T=ids_T, pdl=self.pdl))

    def product(self, linear: Linear, x_TI: Tensor) -> Tensor:
        """linear(x)."""
        plan = self.plan_of(linear)
        return skinny_linear(
            x_TI.contiguous(), linear.weight, space=self.space, plan=plan, bias=linear.bias, pdl=self.pdl
        )

    def normed(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """linear(norm(x))."""
        x_TD, rms = _of(norm, stream)
        plan = self.plan_of(linear)
        return skinny_linear(x_TD, linear.weight, space=self.space, plan=plan, bias=linear.bias, rms=rms, pdl=self.pdl)

    def gated(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """silu(g) * u; a bias here is nobody's."""
        x_TD, rms = _of(norm, stream)
        plan = self.plan_of(linear, gated=True)
        return skinny_linear(x_TD, linear.weight, space=self.space, plan=plan, rms=rms, gated=True, pdl=self.pdl)

    def added(self, stream: Stream, linear: RowLinear, x_TI: Tensor, follows: RMSNorm, *, keep: bool = True) -> Stream:
        """x + linear(x)."""
        plan = self.plan_of(linear)
        if linear.group.size > 1:
            delta = skinny_linear(x_TI, linear.weight, space=self.space, plan=plan, keep=keep, pdl=self.pdl)
            if linear.bias is None:
                with linear.group.mailing(delta, "all_reduce", linear.name) as mail:
                    if mail is not None:
                        return Stream(*push_add_squares(stream.x_TD, delta, follows.weight, mail, pdl=self.pdl))
            total = linear.group.all_reduce(delta, linear.name)
            total = total if linear.bias is None else total + linear.bias
            return Stream(*add_squares(stream.x_TD, follows.weight, total, pdl=self.pdl))
        num_rows, tiles = x_TI.shape[0], -(-linear.shape[0] // plan.block_out)
        ready = Ready(
            weight=follows.weight,
            squares=torch.empty(num_rows, tiles, device=x_TI.device, dtype=torch.float32),
            scaled=torch.empty(num_rows, linear.shape[0], device=x_TI.device, dtype=x_TI.dtype),
        )
        x_TD = skinny_linear(
            x_TI,
            linear.weight,
            space=self.space,
            plan=plan,
            bias=linear.bias,
            residual=stream.x_TD.contiguous(),
            ready=ready,
            keep=keep,
            pdl=self.pdl,
        )
        return Stream(x_TD, ready.squares, ready.scaled)

    def norm(self, norm: RMSNorm, stream: Stream) -> Tensor:
        """norm(x)."""
        return add_norm(stream.x_TD, None, norm.weight, eps=norm.eps, pdl=self.pdl)[1]

    def pair(self, norms: tuple[RMSNorm, RMSNorm], first: Rows, second_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Two norms side by side."""
        weights, eps = (norms[0].weight, norms[1].weight), (norms[0].eps, norms[1].eps)
        first_TD, ids_T = _unread(first)
        return pair_norms(first_TD, second_TD.contiguous(), weights, eps=eps, ids_T=ids_T, pdl=self.pdl)

    def scores(self, head: Linear, normed_TD: Tensor) -> Tensor:
        """head(x) [T, V], the same bits as `choose` sees."""
        logits_TV = torch.empty(normed_TD.shape[0], head.shape[0], device=normed_TD.device, dtype=normed_TD.dtype)
        choose_tokens(normed_TD.contiguous(), head.weight, plan=self._head_plan(head), logits=logits_TV, pdl=self.pdl)
        return logits_TV

    def choose(self, head: Linear, normed_TD: Tensor, draws: Draws | None, names_V: Tensor | None = None) -> Choice:
        """The best id of each row over this shard, with noise where rows are sampled."""
        return choose_tokens(
            normed_TD, head.weight, plan=self._head_plan(head), draws=draws, names=names_V, pdl=self.pdl
        )

    def _head_plan(self, head: Linear) -> Plan:
        return replace(self.plan_of(head), split=1)


def _unread(rows: Rows) -> tuple[Tensor, Tensor | None]:
    """Rows, or a table and which of its rows."""
    return (rows.table_VD, rows.ids_T.contiguous()) if isinstance(rows, Lookup) else (rows.contiguous(), None)


def _of(norm: RMSNorm, stream: Stream) -> tuple[Tensor, Rms]:
    assert stream.squares_TP is not None, "a stream of kernels knows its sums of squares"
    assert stream.scaled_TD is not None, "and its rows times the norm's weight"
    return stream.scaled_TD, Rms(squares=stream.squares_TP, eps=norm.eps)


def kernel_products(device: torch.device) -> KernelProducts:
    """The kernels of a CUDA device; a tuned plan where its kind of device has one."""
    plans = tuned_plans(torch.cuda.get_device_name(device))
    pdl = torch.cuda.get_device_capability(device) >= DEPENDENT_LAUNCH_FROM
    return KernelProducts(space=workspace(device), plans=plans, pdl=pdl)
