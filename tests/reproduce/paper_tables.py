"""Parser of the tables in the paper's LaTeX source, for the test that compares them with `published.toml`."""

from __future__ import annotations

import re

NAMES = {"tab:main results": "table1", "tab:other PEFT": "table2", "tab:ablation": "table3"}
NAMES |= {"tab:inc": "table-taskid", "tab:pretrained backbone": "table-backbones"}
DATASETS = {"CIFAR-100": "cifar100", "ImageNet-R": "imagenet-r", "CUB200": "cub200"}
Cells = dict[tuple[str, str], list[str]]


def parse_tables(source: str) -> dict[tuple[str, str, str], Cells]:
    """Return (table, block, row) -> (dataset, metric) -> [mean, standard deviation] or [mean], as printed."""
    tables: dict[tuple[str, str, str], Cells] = {}
    for text in re.findall(r"\\begin\{tabular\}.*?\\label\{[^}]*\}", source, flags=re.DOTALL):
        name = NAMES[re.findall(r"\\label\{([^}]*)\}", text)[0]]
        body = text.partition("\n")[2].partition(r"\end{tabular}")[0]
        tables |= _parse_rows(name, body)
    return tables


def _parse_rows(name: str, body: str) -> dict[tuple[str, str, str], Cells]:
    rows, block = {}, ""
    columns: list[tuple[str, str]] = []
    for line in body.split(r"\\"):
        block = next(iter(re.findall(r"rotatebox\{90\}\{([^}]*)\}", line)), block).replace("1K", "1k")
        cells = [_strip_markup(cell) for cell in line.split("&")]
        datasets = [DATASETS[each] for each in re.findall("|".join(DATASETS), line)]
        if datasets:
            metrics = ["ACC"] if name == "table-taskid" else ["ACC", "AF"]
            columns = [(data, metric) for data in datasets for metric in metrics]
            continue
        numbers = [re.findall(r"\d+\.\d+", cell) for cell in cells]
        if any(numbers):
            values = [number for number in numbers if number]
            label = next(cell for cell in cells if re.search("[A-Za-z]", cell) and cell not in (block, ""))
            rows[name, block, _rename(label)] = dict(zip(columns, values, strict=True))
    return rows


def _strip_markup(cell: str) -> str:
    """Return the text of a cell."""
    cell = re.sub(r"\\(hline|rowcolor\{[^}]*\}|cellcolor\{[^}]*\}|multirow\{[^}]*\}\{\*\})|\\cline\{[^}]*\}", "", cell)
    cell = re.sub(r"\\rotatebox\{90\}\{[^}]*\}|\\textcolor\{[a-z]*\}|\\textbf", "", cell)
    cell = re.sub(r"\$?\\mathcal\{L\}_\{?(\w+)\}?\$?", r"L_\1", cell)
    return " ".join(re.sub(r"[{}$]|\\pm", " ", cell).split())


def _rename(label: str) -> str:
    label = label.replace("Ours", "CAPrompt").replace("w/o", "without")
    return re.sub(r"\s*\+\s*", " + ", label).strip()
