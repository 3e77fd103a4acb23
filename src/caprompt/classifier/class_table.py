"""What a model knows about its classes: names, image counts, lessons, and which images it has learned.

A method has one output per class that it was taught. A person sees names: normally one per output, but classes that were joined
share a name, and their probabilities add up. Nothing of the method changes when classes are renamed or joined.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from caprompt.data.class_names import check_class_name, normalize_class_name, normalize_saved_names
from caprompt.data.labels import Label
from caprompt.data.samples import Samples
from caprompt.errors import InputError, did_you_mean

__all__ = ["ClassTable"]

DIGEST_BYTES = 8  # stored of the hash of an image: enough to recognize it among a hundred million others
DIGESTS, OUTPUTS = "digests", "outputs"  # names of the tensors that hold what `digests` holds


@dataclass
class ClassTable:
    """Names and records of the classes of a model; C outputs of the method, and at most C names."""

    names: list[str] = field(default_factory=list)
    name_of_output: list[int] = field(default_factory=list)  # (C,), indices into `names`
    counts: list[int] = field(default_factory=list)  # (C,), images that were learned
    digests: dict[bytes, int] = field(default_factory=dict)  # the output that each learned image belongs to
    lessons: list[dict[str, Any]] = field(default_factory=list)  # and edits, in their order
    integers: set[str] = field(default_factory=set)  # names whose labels are integers

    def copy(self) -> ClassTable:
        """Return an independent copy."""
        return copy.deepcopy(self)

    # -- lookup ------------------------------------------------------------------------------------------------------------

    @property
    def output_names(self) -> list[str]:
        """The name of every output."""
        return [self.names[index] for index in self.name_of_output]

    @property
    def labels(self) -> list[Label]:
        """The label of every name: the name itself, or the integer that it was learned as."""
        return [int(name) if name in self.integers else name for name in self.names]

    @property
    def is_joined(self) -> bool:
        """Whether any two outputs share a name."""
        return len(self.names) < len(self.name_of_output)

    @property
    def images_seen(self) -> dict[str, int]:
        """Number of learned images by name."""
        totals = dict.fromkeys(self.names, 0)
        for name, count in zip(self.output_names, self.counts, strict=True):
            totals[name] += count
        return totals

    def find_outputs(self, name: str) -> list[int]:
        """Return the outputs that have a name; raise `InputError` if none has it."""
        outputs = [output for output, other in enumerate(self.output_names) if other == name]
        if not outputs:
            raise InputError(f"class '{name}' has not been learned{did_you_mean(name, self.names)}")
        return outputs

    def first_outputs(self) -> list[int]:
        """Return the first output of every name: the one that further images of it are learned under."""
        first: dict[int, int] = {}
        for output, index in enumerate(self.name_of_output):
            first.setdefault(index, output)
        return [first[index] for index in range(len(self.names))]

    def merge_logits(self, logits: Tensor) -> Tensor:
        """Return logits of names, whose probabilities are the sums of those of their outputs: (N, C) -> (N, names)."""
        if not self.is_joined:
            return logits
        index = torch.tensor(self.name_of_output, device=logits.device).expand_as(logits)
        highest = logits.new_full((logits.shape[0], len(self.names)), -torch.inf).scatter_reduce(1, index, logits, "amax")
        sums = torch.zeros_like(highest).scatter_add(1, index, (logits - highest.gather(1, index)).exp())
        return highest + sums.log()

    # -- lessons -----------------------------------------------------------------------------------------------------------

    def check_label_types(self, samples: Samples) -> None:
        """Raise `InputError` for an integer whose class was learned as a text, and the other way round."""
        if samples.integers is None:
            return
        for name in samples.classes:
            if name in self.names and (name in samples.integers) != (name in self.integers):
                known, other = f"the integer {name}", f"the text '{name}'"
                if name not in self.integers:
                    known, other = other, known
                raise InputError(f"class '{name}' was learned as {known}, not as {other}; give its label as {known}")

    def add(self, names: Iterable[str]) -> None:
        """Add new classes, an output each."""
        for name in names:
            self.name_of_output.append(len(self.names))
            self.names.append(name)
            self.counts.append(0)

    def find_learned(self, samples: Samples) -> list[int]:
        """Return the positions of the images that were learned before, as the same class."""
        outputs = {name: set(self.find_outputs(name)) for name in samples.classes if name in self.names}
        if not outputs:
            return []  # without hashing the images
        return [
            position
            for position, (digest, label) in enumerate(zip(samples.hashes, samples.labels, strict=True))
            if self.digests.get(digest[:DIGEST_BYTES]) in outputs.get(label, ())
        ]

    def record_lesson(self, samples: Samples, details: Mapping[str, Any]) -> None:
        """Count the images of a lesson and append it to the journal, with a hash of each class's images."""
        first = dict(zip(self.names, self.first_outputs(), strict=True))
        hashes: dict[str, Any] = {name: hashlib.sha256() for name in samples.classes}
        for digest, label in zip(samples.hashes, samples.labels, strict=True):
            hashes[label].update(digest)
            self.digests[digest[:DIGEST_BYTES]] = first[label]
        classes = {}
        for name, count in samples.counts().items():
            is_new = self.counts[first[name]] == 0
            self.counts[first[name]] += count
            classes[name] = {"images": count, "new": is_new, "sha256": hashes[name].hexdigest()}
        self.integers |= (samples.integers or frozenset()).intersection(samples.classes)
        self.lessons.append({"kind": "learn", **details, "classes": classes})

    # -- edits -------------------------------------------------------------------------------------------------------------

    def rename(self, old: str, new: str, details: Mapping[str, Any]) -> None:
        """Give a class another name."""
        old, new = normalize_class_name(old), normalize_class_name(new)
        self.find_outputs(old)
        check_class_name(new)
        if new in self.names:
            raise InputError(f"there is a class '{new}' already; to make one class of the two, join them")
        self.names[self.names.index(old)] = new
        self.integers.discard(old)
        self._rename_in_lessons({old: new})
        self.lessons.append({"kind": "rename", **details, "from": old, "to": new})

    def join(self, names: Sequence[str], into: str, details: Mapping[str, Any]) -> None:
        """Make one class of several: their outputs share the name from now on."""
        members, into = list(dict.fromkeys(map(normalize_class_name, names))), normalize_class_name(into)
        for name in members:
            self.find_outputs(name)
        if len(members) < 2:
            raise InputError("two different classes at least are needed to join them")
        check_class_name(into)
        if into in self.names and into not in members:
            raise InputError(f"there is a class '{into}' already, which is not one of those to join; choose another name")
        labels = [into if name in members else name for name in self.output_names]
        self.names = list(dict.fromkeys(labels))
        self.integers &= set(labels)
        self.name_of_output = [self.names.index(label) for label in labels]
        self._rename_in_lessons(dict.fromkeys(members, into))
        self.lessons.append({"kind": "join", **details, "from": members, "to": into})

    def remove(self, output: int, name_is_gone: bool, details: Mapping[str, Any]) -> None:
        """Remove an output; where it was the last of its name, remove every mention of the name."""
        labels = self.output_names
        name = labels.pop(output)
        self.counts.pop(output)
        self.digests = {key: other - (other > output) for key, other in self.digests.items() if other != output}
        self.names = list(dict.fromkeys(labels))
        self.integers &= set(labels)
        self.name_of_output = [self.names.index(label) for label in labels]
        if name_is_gone:
            self._erase_from_lessons(name)
            self.lessons.append({"kind": "forget", **details})

    def _rename_in_lessons(self, new_names: Mapping[str, str]) -> None:
        for lesson in self.lessons:
            classes: dict[str, Any] = {}
            for name, entry in lesson.get("classes", {}).items():
                new_name = new_names.get(name, name)
                classes[new_name] = _merge_entries(classes[new_name], entry) if new_name in classes else entry
            if classes:
                lesson["classes"] = classes

    def _erase_from_lessons(self, name: str) -> None:
        """Remove a class from all lessons, and the edits that gave it its name."""
        kept, gone = [], {name}
        for lesson in reversed(self.lessons):
            if lesson.get("to") in gone:
                gone |= {lesson["from"]} if isinstance(lesson["from"], str) else set(lesson["from"])
            elif "classes" in lesson:
                kept.append({**lesson, "classes": {other: entry for other, entry in lesson["classes"].items() if other != name}})
            else:
                kept.append(lesson)
        self.lessons = kept[::-1]

    # -- files -------------------------------------------------------------------------------------------------------------

    def as_entries(self, task_of_output: Sequence[int]) -> list[dict[str, Any]]:
        """Return the contents of `classes.json`: an entry per output."""
        return [
            {"name": name, "task": task + 1, "images": count, **({"type": "int"} if name in self.integers else {})}
            for name, task, count in zip(self.output_names, task_of_output, self.counts, strict=True)
        ]

    def as_tensors(self) -> dict[str, Tensor]:
        """Return the digests of learned images (n, 8) and their outputs (n,), sorted."""
        keys = sorted(self.digests)
        values = torch.tensor([list(key) for key in keys], dtype=torch.uint8).reshape(-1, DIGEST_BYTES)
        return {DIGESTS: values, OUTPUTS: torch.tensor([self.digests[key] for key in keys], dtype=torch.int32)}

    @classmethod
    def from_saved(
        cls, entries: Sequence[Mapping[str, Any]], lessons: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]
    ) -> ClassTable:
        """Return the table that was saved; older models have no lessons and no digests."""
        labels = normalize_saved_names([entry["name"] for entry in entries])
        names = list(dict.fromkeys(labels))
        digests = {}
        if DIGESTS in tensors:
            digests = dict(zip(map(bytes, tensors[DIGESTS].tolist()), tensors[OUTPUTS].tolist(), strict=True))
        return cls(
            names,
            [names.index(label) for label in labels],
            [entry["images"] for entry in entries],
            digests,
            [dict(lesson) for lesson in lessons],
            {label for label, entry in zip(labels, entries, strict=True) if entry.get("type") == "int"},
        )


def _merge_entries(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of two classes of a lesson that have become one."""
    digest = hashlib.sha256((one["sha256"] + other["sha256"]).encode()).hexdigest()
    return {"images": one["images"] + other["images"], "new": one["new"] or other["new"], "sha256": digest}
