"""Options that say how a draft is fed, where its checkpoint says it wrongly; `slipstream doctor` names them."""

from dataclasses import dataclass
from typing import Annotated

import typer

from slipstream.config.draft import DraftWiring, MapReading

PANEL = "The draft's wiring"

LayersOption = Annotated[
    str | None,
    typer.Option(
        help="After how many target layers each captured state is taken, in fc's order, such as 2,15,27.",
        rich_help_panel=PANEL,
    ),
]
NormOutputOption = Annotated[
    bool | None,
    typer.Option(
        "--draft-norm-output/--no-draft-norm-output",
        help="Whether a further draft step reads the normed hidden state.",
        rich_help_panel=PANEL,
    ),
]
NormBeforeResidualOption = Annotated[
    bool | None,
    typer.Option(
        "--draft-norm-before-residual/--no-draft-norm-before-residual",
        help="Whether the draft's residual is the normed hidden state.",
        rich_help_panel=PANEL,
    ),
]
D2tOption = Annotated[
    str,
    typer.Option(
        help="The draft's vocabulary map: d2t holds offsets or ids; mask reads t2d; first is neither.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WiringOptions:
    """The same for verbs that do not load an engine."""

    draft_layers: LayersOption = None
    draft_norm_output: NormOutputOption = None
    draft_norm_before_residual: NormBeforeResidualOption = None
    draft_d2t: D2tOption = "offsets"

    def wiring(self) -> DraftWiring:
        """What the options say; see `wiring_of`."""
        return wiring_of(
            self.draft_layers,
            norm_output=self.draft_norm_output,
            norm_before_residual=self.draft_norm_before_residual,
            d2t=self.draft_d2t,
        )


def wiring_of(
    layers: str | None, *, norm_output: bool | None, norm_before_residual: bool | None, d2t: str
) -> DraftWiring:
    """What the options say.

    Raises:
        ValueError: layers that are no numbers, or an unknown reading of d2t.
    """
    readings = [each.value for each in MapReading]
    if d2t not in readings:
        raise ValueError(f"--draft-d2t {d2t} is unknown; use {', '.join(readings)}")
    return DraftWiring(
        layers=None if layers is None else _numbers(layers),
        norm_output=norm_output,
        norm_before_residual=norm_before_residual,
        map_reading=MapReading(d2t),
    )


def _numbers(layers: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in layers.split(","))
    except ValueError:
        raise ValueError(f"--draft-layers takes numbers such as 2,15,27, not {layers!r}") from None
