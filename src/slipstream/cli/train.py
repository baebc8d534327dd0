"""`slipstream train`: the target answers prompts, and a draft learns to foresee it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

DATA, DRAFT, LOSS, LOOP = "Data", "Draft", "Loss", "Loop"


def train(
    model: Annotated[str, typer.Option(help="Target: a directory, a .gguf file, a pulled name or a hub id.")],
    out: Annotated[Path, typer.Option(help="Folder for conversations, checkpoints, log and draft.")],
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Prompt file; may be given several times.", rich_help_panel=DATA)
    ] = None,
    eval_prompts: Annotated[
        list[Path] | None, typer.Option(help="Held-out prompt file; one set each.", rich_help_panel=DATA)
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(help="SET=N: at most N prompts of a set; mc_=N caps every set so begun.", rich_help_panel=DATA),
    ] = None,
    max_prompts: Annotated[
        int | None, typer.Option(help="Most prompts taken from the files.", rich_help_panel=DATA)
    ] = None,
    self_prompts: Annotated[
        int, typer.Option(help="User turns the target draws itself (Magpie).", rich_help_panel=DATA)
    ] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Folder whose conversations are reused, or made there.", rich_help_panel=DATA)
    ] = None,
    data_only: Annotated[
        bool, typer.Option("--data-only", help="Stop when the conversations are made.", rich_help_panel=DATA)
    ] = False,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are dropped.", rich_help_panel=DATA)] = 512,
    answer_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", rich_help_panel=DATA)] = 256,
    answer_batch: Annotated[
        int | None, typer.Option(help="Sequences answered together; 2048 on cuda, 16 on cpu.", rich_help_panel=DATA)
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="Temperatures, taken in turn over the prompts.", rich_help_panel=DATA)
    ] = "0,0.8",
    max_eval: Annotated[int, typer.Option(help="Prompts of each held-out set.", rich_help_panel=DATA)] = 80,
    draft_vocab: Annotated[int, typer.Option(help="Ids the draft can say.", rich_help_panel=DRAFT)] = 16384,
    intermediate_size: Annotated[
        int | None, typer.Option(help="MLP width; the target's if not given.", rich_help_panel=DRAFT)
    ] = None,
    fc_norm: Annotated[
        bool, typer.Option("--fc-norm", help="EAGLE-3.1: one norm a captured chunk.", rich_help_panel=DRAFT)
    ] = False,
    norm_output: Annotated[
        bool, typer.Option("--norm-output", help="Feed the next step the normed state.", rich_help_panel=DRAFT)
    ] = False,
    norm_before_residual: Annotated[
        bool, typer.Option("--norm-before-residual", help="Residual = normed hidden.", rich_help_panel=DRAFT)
    ] = False,
    init: Annotated[str, typer.Option(help="target or random.", rich_help_panel=DRAFT)] = "target",
    ttt_steps: Annotated[int, typer.Option(help="Training-time-test steps.", rich_help_panel=LOSS)] = 5,
    decay: Annotated[float, typer.Option(help="Weight of step i is decay ** i.", rich_help_panel=LOSS)] = 0.8,
    mask: Annotated[str, typer.Option(help="serving, speculators or eagle.", rich_help_panel=LOSS)] = "serving",
    normalise: Annotated[
        str, typer.Option(help="valid (slots that give loss) or tokens (all slots).", rich_help_panel=LOSS)
    ] = "valid",
    teacher_temperature: Annotated[
        float, typer.Option(help="Below 1 sharpens the target's distribution.", rich_help_panel=LOSS)
    ] = 1.0,
    minutes: Annotated[
        float | None, typer.Option(help="Train this long; the schedule ends on time.", rich_help_panel=LOOP)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.", rich_help_panel=LOOP)] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the conversations; 4 if no budget is given.", rich_help_panel=LOOP)
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens a step, padding included.", rich_help_panel=LOOP)] = 49152,
    lr: Annotated[float, typer.Option(help="Peak learning rate.", rich_help_panel=LOOP)] = 1e-3,
    warmup: Annotated[float, typer.Option(help="Share of the run that warms up.", rich_help_panel=LOOP)] = 0.03,
    clip: Annotated[float, typer.Option(help="Largest gradient norm.", rich_help_panel=LOOP)] = 1.0,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.", rich_help_panel=LOOP)] = 20,
    save_every_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.", rich_help_panel=LOOP)] = 5.0,
    measure_every_minutes: Annotated[float, typer.Option(help="Minutes between walks.", rich_help_panel=LOOP)] = 2.0,
    measure_steps: Annotated[
        int, typer.Option(help="Draft steps of the walked accept length.", rich_help_panel=LOOP)
    ] = 4,
    compile: Annotated[
        bool, typer.Option("--compile", help="torch.compile the hot parts.", rich_help_panel=LOOP)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in --out.", rich_help_panel=LOOP)
    ] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Order, initial weights and sampling.")] = 0,
) -> None:
    """Train an EAGLE-3 draft: regenerate, train, measure, export."""
    import torch  # noqa: PLC0415 - help must not wait for torch

    from slipstream.train import options as chosen  # noqa: PLC0415
    from slipstream.train.run import RunOptions, run  # noqa: PLC0415

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if minutes is None and steps is None and epochs is None:
        epochs = 4.0
    options = RunOptions(
        model=model,
        out=out,
        data=chosen.DataOptions(
            prompts=tuple(prompts or ()),
            caps=tuple(_cap(text) for text in cap or ()),
            max_prompts=max_prompts,
            self_prompts=self_prompts,
            max_prompt_tokens=max_prompt_tokens,
            answer_tokens=answer_tokens,
            answer_batch=answer_batch or (2048 if device.startswith("cuda") else 16),
            temperatures=tuple(float(value) for value in temperatures.split(",")),
            seed=seed,
        ),
        draft=chosen.DraftOptions(
            vocab_size=draft_vocab,
            intermediate_size=intermediate_size,
            fc_norm=fc_norm,
            norm_output=norm_output,
            norm_before_residual=norm_before_residual,
            initial=chosen.Initial(init),
        ),
        loss=chosen.LossOptions(
            steps=ttt_steps,
            decay=decay,
            mask=chosen.Mask(mask),
            normalise=chosen.Normalise(normalise),
            teacher_temperature=teacher_temperature,
        ),
        loop=chosen.LoopOptions(
            minutes=minutes,
            steps=steps,
            epochs=epochs,
            batch_tokens=batch_tokens,
            lr=lr,
            warmup=warmup,
            clip=clip,
            log_every=log_every,
            save_every_minutes=save_every_minutes,
            measure_every_minutes=measure_every_minutes,
            measure_steps=measure_steps,
            compile=compile,
            seed=seed,
        ),
        eval_prompts=tuple(eval_prompts or ()),
        max_eval=max_eval,
        conversations=data,
        resume=resume,
        data_only=data_only,
        device=device,
    )
    run(options)


def _cap(text: str) -> tuple[str, int]:
    name, found, number = text.partition("=")
    if not found or not number.isdecimal():
        raise ValueError(f"--cap {text} is not SET=N; write for example --cap t0_p3=7000")
    return name, int(number)


def main() -> None:
    """Run the verb alone: `python -m slipstream.cli.train`."""
    try:
        typer.run(train)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
