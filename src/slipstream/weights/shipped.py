"""Find the draft that ships with slipstream: `drafts/` in a checkout, `slipstream/_drafts/` in a wheel."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = "-eagle3"


def short_name(model: Path) -> str:
    """The name a shipped draft goes by: a model's own, or that of the folder a pulled .gguf lies in."""
    return model.parent.name if model.suffix == ".gguf" else model.name


def shipped_draft(model_name: str) -> Path | None:
    """The folder of the draft trained for `model_name` (a bare name such as `smollm2-135m`), if one ships."""
    if not model_name or Path(model_name).name != model_name:
        return None
    for home in draft_homes(PACKAGE):
        folder = home / f"{model_name.lower()}{SUFFIX}"
        if (folder / "config.json").is_file():
            return folder
    return None


def draft_homes(package: Path) -> tuple[Path, ...]:
    """Where drafts can lie, nearest first; an editable install finds the checkout it points to."""
    packaged = package / "_drafts"
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        return checkout / "drafts", packaged
    return (packaged,)
