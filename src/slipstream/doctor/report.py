"""A checkup as plain JSON types; every field that holds a finding or a number has a definition beside it."""

from dataclasses import asdict
from typing import Any

from slipstream.doctor.causes import listed
from slipstream.doctor.checkup import Checkup, Examined
from slipstream.doctor.compare import CONFIDENCE
from slipstream.doctor.evidence import LIKELIEST
from slipstream.doctor.finding import Finding
from slipstream.doctor.hypotheses import Row
from slipstream.doctor.score import FLOOR, STEPS
from slipstream.doctor.verdict import Outcome
from slipstream.doctor.wiring import Wiring

DEFINITIONS = {
    "doctor": "which examination this is",
    "model": "the target, as it was named",
    "draft": "the draft's folder",
    "planted": "the mistake that was put in on purpose, or null",
    "verdict": "healthy, warning or broken: the worst of all parts",
    "says": "one sentence",
    "exit_code": "0 healthy, 1 warning, 2 broken",
    "seconds": "wall time of the whole examination, loading included",
    "environment": "the machine",
    "device": "where the models ran: cuda or cpu",
    "python": "version of Python",
    "torch": "version of PyTorch",
    "cuda": "CUDA that PyTorch was built for, or null",
    "driver": "version of NVIDIA's driver, or null",
    "cpu": "the CPU's name",
    "cores": "cores that this process may use",
    "threads": "threads that PyTorch uses",
    "memory_gib": "the host's memory, GiB",
    "cpu_flags": "of avx2, avx512f, amx_bf16 and avx512_bf16, those that the CPU has",
    "onednn": "whether this PyTorch has oneDNN, which packs weights on a CPU",
    "gpus": "GPUs that are used; empty on a CPU",
    "index": "number of a GPU, from 0",
    "capability": "compute capability of a GPU",
    "free_gib": "free memory of a GPU, GiB",
    "total_gib": "all memory of a GPU, GiB",
    "topology": "the slowest link among the GPUs, or null",
    "findings": "what was looked at, with a grade each",
    "name": "of a GPU, a finding, a cause or a hypothesis",
    "grade": "of a finding: healthy, warning or broken",
    "remedy": "what to do about it; empty where nothing is to be done",
    "compatibility": "the draft's files beside the target's",
    "wiring": "how the draft is fed and read, tried on real text",
    "outcome": "right, weak, inconclusive, wrong, another target's draft, or not examined",
    "causes": "what is wrong, in the order in which it was found",
    "slipstream": "the flag that puts it right here",
    "sglang": "the key of the draft's config.json for SGLang, or what to do instead",
    "vllm": "the same for vLLM",
    "tied": "hypotheses that cannot be told from the one that was settled on",
    "declared": "the wiring as the files and the options declare it",
    "settled": "the wiring that was settled on",
    "layers": "after how many target layers each state is taken, in fc's order",
    "norm_output": "whether a further draft step reads the normed hidden state",
    "norm_before_residual": "whether the residual of the draft's first layer is the normed hidden state",
    "map_reading": "the vocabulary map: d2t as offsets or ids, t2d as mask, or first, which is none",
    "shifted": "whether the draft embeds token p + 1 at position p",
    "own_embedding": "whether the checkpoint's embeddings are used, where it has any",
    "own_rope": "whether the draft's own RoPE is used",
    "num_prompts": "prompts that the target answered greedily",
    "num_tokens": "tokens of those answers",
    "hypotheses": "wirings that were tried; those of a round differ from its first by one thing",
    "round": "a round begins with the wiring that the others are compared with",
    "cross_entropy": f"nats a token: the target's {LIKELIEST} likeliest tokens against the draft's distribution, mean"
    f" of {STEPS} steps fed with the text's own tokens, {FLOOR:.0%} of a uniform distribution mixed in",
    "difference": "cross-entropy minus that of the round's first wiring, paired over slots; null for itself",
    "low": f"lower end of the {CONFIDENCE:.0%} interval of the difference, over prompts",
    "high": f"upper end of the {CONFIDENCE:.0%} interval of the difference, over prompts",
    "mean": "mean difference",
    "accept_length": f"emitted / cycles of a greedy chain of {STEPS} steps over the answers; plain decoding has 1.0",
    "acceptance_by_position": "P(position i accepted, given that all before it were), i from 1",
    "definitions": "what each field means",
}


def checkup_row(found: Checkup) -> dict[str, Any]:
    """Everything that the command prints."""
    machine = asdict(found.environment)
    machine["findings"] = [finding_row(each) for each in found.environment.findings]
    return {
        "doctor": "check",
        "model": found.asked.model,
        "draft": str(found.asked.draft),
        "planted": None if found.asked.fault is None else found.asked.fault.value,
        "verdict": found.grade.value,
        "says": found.says,
        "exit_code": found.grade.exit_code,
        "wiring": wiring_row(found.wiring),
        "compatibility": {"findings": [finding_row(each) for each in found.compatibility]},
        "environment": machine,
        "seconds": found.seconds,
        "definitions": DEFINITIONS,
    }


def finding_row(found: Finding) -> dict[str, Any]:
    """One finding."""
    return {"name": found.name, "grade": found.grade.value, "says": found.says, "remedy": found.remedy}


def wiring_row(found: Examined) -> dict[str, Any]:
    """The wiring's verdict, then its evidence."""
    verdict, search = found.verdict, found.search
    foreign = verdict.outcome is Outcome.FOREIGN
    return {
        "outcome": verdict.outcome.value,
        "says": verdict.says,
        "causes": [asdict(each) for each in verdict.causes],
        "tied": list(verdict.tied),
        "declared": None if found.declared is None else plain_wiring(found.declared),
        "settled": None if search is None or foreign else plain_wiring(search.best.hypothesis.wiring),
        "num_prompts": found.num_prompts,
        "num_tokens": found.num_tokens,
        "hypotheses": [] if search is None else [hypothesis_row(each) for each in all_rows(found)],
    }


def all_rows(found: Examined) -> list[Row]:
    """Every row of a search, the control last."""
    if found.search is None:
        return []
    return [row for rows in found.search.rounds for row in rows] + [found.search.control]


def hypothesis_row(row: Row) -> dict[str, Any]:
    """One hypothesis' numbers; null where it could not be tried."""
    known = row.score
    return {
        "round": row.round,
        "name": row.hypothesis.name,
        **plain_wiring(row.hypothesis.wiring),
        "cross_entropy": None if known is None else known.cross_entropy,
        "difference": None if row.difference is None else asdict(row.difference),
        "accept_length": None if known is None else known.walk.accept_length,
        "acceptance_by_position": None if known is None else known.walk.by_position,
    }


def plain_wiring(wiring: Wiring) -> dict[str, Any]:
    """A wiring's fields."""
    return {**asdict(wiring), "layers": list(wiring.layers), "map_reading": wiring.map_reading.value}


def short_wiring(wiring: Wiring) -> str:
    """A wiring in a few words."""
    words = [f"after {listed(wiring.layers)}", "post-norm" if wiring.norm_output else "pre-norm"]
    if wiring.norm_before_residual:
        words.append("normed residual")
    words.append(f"d2t {wiring.map_reading.value}")
    return ", ".join(words if wiring.shifted else [*words, "unshifted"])
