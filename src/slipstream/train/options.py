"""Every choice of a training run, settled once at the door."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Mask(Enum):
    """Which slots are supervised: slot t of step i predicts token t + 2 + i; m marks answer tokens."""

    SERVING = "serving"  # m[t + 2 + i]: what serving asks for
    SPECULATORS = "speculators"  # m[t + 1 + i]: speculators, Automodel, Model-Optimizer
    EAGLE = "eagle"  # m[t + i]: EAGLE, SpecForge, DeepSpec


class Normalise(Enum):
    """What a step's summed loss is divided by."""

    TOKENS = "tokens"  # all B * T slots of the batch, padding included
    VALID = "valid"  # slots that give loss


class Initial(Enum):
    """How a new draft starts."""

    TARGET = "target"  # from the target's head, norm and last layer
    HEAD = "head"  # from the target's head and norm; the rest at random
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """The head to make."""

    vocab_size: int = 16384
    intermediate_size: int | None = None  # None = the target's
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    initial: Initial = Initial.TARGET
    captures: tuple[int, ...] | None = None  # after k target layers; None = the default three


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """What is minimised."""

    steps: int = 5  # training-time-test steps
    decay: float = 0.8  # weight of step i is decay ** i
    mask: Mask = Mask.SERVING
    normalise: Normalise = Normalise.VALID
    teacher_temperature: float = 1.0  # below 1 sharpens the target's distribution
    chunk_rows: int | None = None  # rows of logits alive at once; None = by vocabulary size


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Prompts and how the target answers them."""

    prompts: tuple[Path, ...] = ()
    caps: tuple[tuple[str, int], ...] = ()  # set name -> most prompts taken of it; "mc_" caps every set it begins
    max_prompts: int | None = None
    self_prompts: int = 0  # user turns the target writes itself
    max_prompt_tokens: int = 512
    answer_tokens: int = 256
    answer_batch: int = 16
    temperatures: tuple[float, ...] = (0.0, 0.8)  # taken in turn over the prompts
    loop_tail: int | None = None  # tokens kept of an answer's first loop; None = all
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How long and how fast; exactly one of minutes, steps and epochs ends the run."""

    minutes: float | None = None
    steps: int | None = None
    epochs: float | None = None
    batch_tokens: int = 49152
    lr: float = 1e-3
    warmup: float = 0.03  # share of the run
    final_lr: float = 0.05  # share of lr
    clip: float = 1.0
    log_every: int = 20
    save_every_minutes: float = 5.0
    measure_every_minutes: float = 2.0
    measure_steps: int = 4  # K of the walked accept length
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that one budget is given."""
        if sum(budget is not None for budget in (self.minutes, self.steps, self.epochs)) != 1:
            raise ValueError("give exactly one of --minutes, --steps and --epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything `slipstream train` is told."""

    model: str
    out: Path
    data: DataOptions
    draft: DraftOptions = DraftOptions()
    loss: LossOptions = LossOptions()
    loop: LoopOptions
    eval_prompts: tuple[Path, ...] = ()
    max_eval: int = 80  # prompts of each held-out set
    conversations: Path | None = None  # a folder with answers to reuse; None = the run's own
    resume: bool = False
    data_only: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check that held-out sets, which go by their files' names, can be told apart."""
        names = [file.stem for file in self.eval_prompts]
        if len(set(names)) < len(names):
            raise ValueError(f"two files of --eval-prompts have one name ({', '.join(names)}); rename one")
