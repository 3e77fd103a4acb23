"""The files of a target: its table in every format, its plots, the record of its cells, and a Markdown page that shows them."""

from __future__ import annotations

import shlex
from pathlib import Path

from caprompt.protocols import parse_kind
from caprompt.reproduce.evidence import Evidence, Presentation
from caprompt.reproduce.plan import write_record
from caprompt.reproduce.plots import save_plot
from caprompt.reproduce.scales import format_backbone_title, load_scales
from caprompt.reproduce.tables import to_csv, to_latex, to_markdown

__all__ = ["format_command", "format_section", "write_target"]


def write_target(evidence: Evidence, presentation: Presentation, folder: Path) -> list[Path]:
    """Write all files of a target; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name = evidence.target.name
    plots = [path for suffix, plot in presentation.plots.items() for path in save_plot(plot, folder / f"{name}{suffix}")]
    texts = {
        ".md": format_section(evidence, presentation, ""),
        ".csv": to_csv(presentation.table),
        ".tex": to_latex(presentation.table),
    }
    for suffix, text in texts.items():
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    write_record(evidence, folder / f"{name}.json")
    return [*(folder / f"{name}{suffix}" for suffix in texts), *plots]


def format_command(evidence: Evidence) -> str:
    """Return the command that reproduces a target."""
    scale, default = evidence.scale, load_scales()[evidence.scale.name]
    words = ["caprompt reproduce", evidence.target.name, "--scale", scale.name, "--seeds", str(scale.seeds)]
    words += ["--backbone", Path(scale.backbone).name] if scale.backbone != default.backbone else []
    overrides = {key: value for key, value in scale.settings.items() if default.settings.get(key) != value}
    words += [f"--set {key}={_format_value(value)}" for key, value in overrides.items()]
    return " ".join([*words, *(["--protocol", evidence.protocol] if parse_kind(evidence.protocol) != "honest" else [])])


def _format_value(value: object) -> str:
    """Return an option's value as it is typed.

    >>> _format_value([0.6, 1]), _format_value(True), _format_value("first-5")
    ('0.6,1', 'true', 'first-5')
    """
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def format_section(evidence: Evidence, presentation: Presentation, images: str, level: int = 1) -> str:
    """Return title, table, plots, conditions and notes as Markdown; `images` is the prefix of the paths to the plots."""
    scale, table = evidence.scale, presentation.table
    mark = "" if evidence.protocol == "honest" else " (protocol RELEASED where marked: not comparable with honest results)"
    lines = [f"{'#' * level} {table.title}{mark}", "", to_markdown(table)]
    for suffix in presentation.plots:
        lines += [f"![{table.title}]({images}{evidence.target.name}{suffix}.svg)", ""]
    backbone, preset = format_backbone_title(scale.backbone), evidence.target.preset or scale.preset
    lines += [
        f"Scale {scale.name}: {scale.summary}. Backbone {backbone} where the table names no other, preset {preset}, "
        f"{'one seed' if scale.seeds == 1 else f'{scale.seeds} seeds, mean ± standard deviation'}. `{format_command(evidence)}`",
        "",
        *(f"- {note}." for note in (*table.notes, *(f"Run on {machine}" for machine in evidence.list_machines()))),
    ]
    return "\n".join(lines) + "\n"
