from __future__ import annotations

import numpy as np

from caprompt.experiments.artifacts import FinalPredictions
from caprompt.report.confusion import MAX_CLASSES, make_confusion_table


def make_predictions(classes: int, true: list[int], answer: list[int]) -> FinalPredictions:
    return FinalPredictions(
        classes=tuple(f"c{number}" for number in range(classes)),
        true=np.array(true, dtype=np.int32),
        answer=np.array(answer, dtype=np.int32),
        score=np.full(len(true), 0.5, dtype=np.float32),
        cycles=(0,),
        answers=np.zeros((1, len(true)), dtype=np.int32),
        weights=np.ones((1, len(true), 1), dtype=np.float16),
    )


def test_rows_follow_the_order_of_learning() -> None:
    table = make_confusion_table(make_predictions(3, [0, 0, 1, 0], [0, 1, 1, 1]), [["c2"], ["c0", "c1"]])
    assert table.classes == ["c2", "c0", "c1"]
    assert [(row.name, row.images, list(row.counts), row.others) for row in table.rows] == [
        ("c2", 0, [0, 0, 0], 0),
        ("c0", 3, [0, 1, 2], 0),
        ("c1", 1, [0, 0, 1], 0),
    ]
    assert table.rows[1].share(1) == 100 / 3
    assert table.rows[0].share(0) == 0
    assert not table.is_cut


def test_of_many_classes_those_with_the_most_mistakes_are_shown() -> None:
    true, answer = list(range(300)), list(range(300))
    true += [250, 250, 7]
    answer += [7, 7, 299]
    table = make_confusion_table(make_predictions(300, true, answer), [[f"c{number}" for number in range(300)]])
    assert table.is_cut
    assert table.num_classes == 300
    assert len(table.classes) == MAX_CLASSES
    assert {"c7", "c250", "c299"} <= set(table.classes)
    assert sum(row.others for row in table.rows) == 0


def test_images_predicted_as_classes_without_a_column_are_counted() -> None:
    """The first class is taken for each of the others once, and of these not all have a column."""
    count = MAX_CLASSES + 5
    table = make_confusion_table(make_predictions(count, [0] * count, list(range(count))), [[f"c{n}" for n in range(count)]])
    assert table.classes[0] == "c0"
    assert (table.rows[0].images, table.rows[0].others) == (count, 5)
