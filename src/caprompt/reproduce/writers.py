"""What a target leaves on the disk: one folder with its table in every format, its pictures, and a page that shows both."""

from __future__ import annotations

import shlex
from pathlib import Path

from caprompt.protocols import kind
from caprompt.reproduce.evidence import Evidence, Presentation
from caprompt.reproduce.plan import write_record
from caprompt.reproduce.plots import save
from caprompt.reproduce.scales import backbone_title, scales
from caprompt.reproduce.tables import as_csv, as_latex, as_markdown

__all__ = ["command", "section", "write"]


def write(evidence: Evidence, shown: Presentation, folder: Path) -> list[Path]:
    """Write all files of a target; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name = evidence.target.name
    drawn = {ending: save(picture, folder / f"{name}{ending}") for ending, picture in shown.pictures.items()}
    texts = {".md": section(evidence, shown, ""), ".csv": as_csv(shown.sheet), ".tex": as_latex(shown.sheet)}
    for suffix, text in texts.items():
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    write_record(evidence, folder / f"{name}.json")
    return [*(folder / f"{name}{suffix}" for suffix in texts), *(path for paths in drawn.values() for path in paths)]


def command(evidence: Evidence) -> str:
    """What to type for this again."""
    scale, usual = evidence.scale, scales()[evidence.scale.name]
    words = ["caprompt reproduce", evidence.target.name, "--scale", scale.name, "--seeds", str(scale.seeds)]
    words += ["--backbone", Path(scale.backbone).name] if scale.backbone != usual.backbone else []
    changed = {key: value for key, value in scale.settings.items() if usual.settings.get(key) != value}
    words += [f"--set {key}={typed(value)}" for key, value in changed.items()]
    return " ".join([*words, *(["--protocol", evidence.protocol] if kind(evidence.protocol) != "honest" else [])])


def typed(value: object) -> str:
    """An option's value as it is typed.

    >>> typed([0.6, 1]), typed(True), typed("first-5")
    ('0.6,1', 'true', 'first-5')
    """
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def section(evidence: Evidence, shown: Presentation, list_images: str, level: int = 1) -> str:
    """Title, table, pictures and everything a reader should know, as Markdown; pictures lie in `list_images` beside the page."""
    scale, sheet = evidence.scale, shown.sheet
    mark = "" if evidence.protocol == "honest" else " (protocol RELEASED where marked: no honest figures)"
    lines = [f"{'#' * level} {sheet.title}{mark}", "", as_markdown(sheet)]
    for ending in shown.pictures:
        lines += [f"![{sheet.title}]({list_images}{evidence.target.name}{ending}.svg)", ""]
    backbone, preset = backbone_title(scale.backbone), evidence.target.preset or scale.preset
    lines += [
        f"Scale {scale.name}: {scale.summary}. Backbone {backbone} where the table names no other, preset {preset}, "
        f"{'one seed' if scale.seeds == 1 else f'{scale.seeds} seeds, mean ± standard deviation'}. `{command(evidence)}`",
        "",
        *(f"- {note}." for note in (*sheet.notes, *(f"Run on {where}" for where in evidence.machines()))),
    ]
    return "\n".join(lines) + "\n"
