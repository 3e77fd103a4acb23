"""`ContinualClassifier`, the main public class: it learns new image classes whenever they come, and predicts their names.

    from caprompt import ContinualClassifier

    model = ContinualClassifier()
    model.learn("photos/week1")                 # a folder per class; also a CSV, or (images, labels)
    model.learn("photos/week2")                 # new classes are simply new
    model.predict_one("cat.jpg").label
    model.save("pets")
    model = ContinualClassifier.load("pets")    # months later, in another process: learn on

Further images of known classes may come in any call. CAPrompt leaves every old prompt as it is and merges the images into the
statistics of their classes; methods that store no statistics train on them like on any others.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from caprompt import checkpoint, protocols
from caprompt.calibration import Evidence, fit_calibration, make_evidence
from caprompt.callbacks.events import Callback, Consolidating, EpochEnded, ImagesChecked, LearnEnded, LearnStarted, compose
from caprompt.callbacks.progress_display import show_progress
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    select_by_prefix,
)
from caprompt.classifier.prediction import PredictingModel
from caprompt.classifier.state import NUM_VERSIONS, check_local_folder
from caprompt.data.images import measure_short_side
from caprompt.data.labels import Names
from caprompt.data.samples import Samples
from caprompt.data.sources import Source, read_source
from caprompt.data.validation import check_label_conflicts, explain_unreadable, validate_images
from caprompt.engine import trainer
from caprompt.engine.inference import choose_batch_size
from caprompt.engine.inputs import InputPipeline, RepeatableBatches
from caprompt.errors import CapromptWarning, InputError, ModelFolderError
from caprompt.methods.base import Batches, HonestScores
from caprompt.methods.options import Options
from caprompt.methods.removal import remove_class
from caprompt.utils import optimizers
from caprompt.utils.communication import deal_batches, get_communicator
from caprompt.utils.paths import expand_user
from caprompt.utils.random import derive_seed, make_generator
from caprompt.utils.throttle import Throttle

__all__ = ["ContinualClassifier"]

MEGABYTE = 1_000_000
RENAMED_ARGUMENTS = {"folder": "checkpoint_dir", "listen": "callbacks"}  # of `learn`, until the next minor version


class ContinualClassifier(PredictingModel):
    """An image classifier that learns new classes call by call. Labels are text or integers; any number of classes may come."""

    def learn(
        self,
        source: Source,
        *,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        again: bool = False,
        keep_versions: int = NUM_VERSIONS,
        names: Names | None = None,
        progress: bool | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        **renamed: Any,
    ) -> Samples:
        """Learn labeled images: a folder per class, a CSV of paths and labels, (images, labels), or a dataset. Return the images.

        docs/data.md lists all sources. `names` are the names of classes whose labels are numbers.

        With `checkpoint_dir`, the model is saved there at the end, and checkpoints are written after epochs, as often as that
        is cheap; `resume` continues from the last one to the very same model. There, `keep_versions` earlier versions of the model
        are kept as well, for `undo`. Images that were learned before are left out, unless `again`.
        If the call fails, the model is as it was before.
        `callbacks` are functions of one event (`caprompt.callbacks`), called in their order. `progress` shows a progress bar or
        none; by default there is one in notebooks only.
        """
        if renamed:
            current = {"checkpoint_dir": checkpoint_dir, "callbacks": callbacks, **_rename_arguments(renamed)}
            checkpoint_dir, callbacks = current["checkpoint_dir"], current["callbacks"]
        self.require_learning_state()
        if checkpoint_dir is None and resume:
            raise InputError("a stopped call is resumed from its checkpoints; give checkpoint_dir as well")
        directory = None if checkpoint_dir is None else expand_user(checkpoint_dir)
        if directory is not None:
            check_local_folder(directory)
        samples = read_source(source, names)
        self.table.check_label_types(samples)
        with show_progress(progress) as bar:
            callback = compose(*([callbacks] if callable(callbacks) else callbacks), bar)
            if directory is None:
                return self._learn_source(samples, None, False, skip_bad, again, 0, callback)
            get_communicator().wait()  # until all processes have loaded the model
            if get_communicator().rank:  # the first process alone writes
                return self._learn_source(samples, directory, resume, skip_bad, again, keep_versions, callback)
            with checkpoint.lock_folder(directory):
                self._check_directory(directory)
                if not resume:
                    checkpoint.discard(directory / IN_PROGRESS)
                samples = self._learn_source(samples, directory, resume, skip_bad, again, keep_versions, callback)
                with suppress(OSError):  # the model is saved; a checkpoint of a call that has ended is ignored
                    checkpoint.discard(directory / IN_PROGRESS)
        return samples

    def _learn_source(
        self,
        samples: Samples,
        directory: Path | None,
        resume: bool,
        skip_bad: bool,
        again: bool,
        keep_versions: int,
        callback: Callback,
    ) -> Samples:
        pipeline = InputPipeline(self.backbone, self.device)
        samples = self._check_images(samples, pipeline, skip_bad, callback)
        if not again:
            samples = self._leave_out_learned(samples)
        with self._restore_on_failure():
            start_time = time.perf_counter()
            if directory is None and get_communicator().size == 1:
                with samples.hash_aside() as raise_failure:
                    watched = compose(callback, lambda event: raise_failure())  # not only after a long training
                    self._learn(samples, pipeline, directory, resume, watched)
            else:  # which compares the images by their hashes at its start
                self._learn(samples, pipeline, directory, resume, callback)
            self.num_calls += 1
            self.table.record_lesson(samples, self.describe_lesson(time.perf_counter() - start_time))
            if directory is not None and get_communicator().rank == 0:
                self.save_locked(directory, keep_versions)
        return samples

    def _check_images(self, samples: Samples, pipeline: InputPipeline, skip_bad: bool, callback: Callback) -> Samples:
        """Return the samples whose images can be decoded. Where all will be trained on, some are uploaded while others are read."""

        def report(done: int, total: int) -> None:
            callback(ImagesChecked(done, total))

        are_new = set(samples.classes).isdisjoint(self.classes)
        if skip_bad or get_communicator().size > 1 or not (pipeline.batched and are_new and self._trains_on(samples)):
            return validate_images(samples, pipeline.cache, skip_bad, report, get_communicator())
        with explain_unreadable(samples):
            pipeline.upload(samples, report)
        if not samples.published:
            check_label_conflicts(samples, pipeline.cache.content_keys)
        return samples

    def _trains_on(self, samples: Samples) -> bool:
        """Choose the effort of a task of these samples; return whether the method trains for any epochs."""
        self.method.choose_effort(len(samples), len(samples.classes))
        return self.method.epochs > 0

    def _leave_out_learned(self, samples: Samples) -> Samples:
        """Return the images that have not been learned yet; a published benchmark is used unchanged."""
        learned = set() if samples.published else set(self.table.find_learned(samples))
        if not learned:
            return samples
        if len(learned) == len(samples):
            raise InputError(f"all {len(samples)} images were learned before; learn them once more with again=True")
        note = f"{len(learned)} image(s) that were learned before were left out; learn them once more with again=True"
        rest = samples.select(position for position in range(len(samples)) if position not in learned)
        return replace(rest, skipped=(*samples.skipped, note))

    def _check_directory(self, directory: Path) -> None:
        """Refuse a folder with another model, or with a version of this one that was saved since it was loaded, or a full disk."""
        if checkpoint.exists(directory) and checkpoint.read_identity(directory) != self._identity:
            raise ModelFolderError(
                f"the model in '{directory}' is not the one that is learning; load it again, or choose another folder"
            )
        needed, free = 2 * self.method.estimate_saved_bytes() + MEGABYTE, shutil.disk_usage(directory).free
        if free < needed:
            raise ModelFolderError(
                f"about {needed / MEGABYTE:.0f} MB are needed in '{directory}', but {free / MEGABYTE:.0f} MB are free on its disk; "
                "free some, or choose another folder"
            )

    def _learn(self, samples: Samples, pipeline: InputPipeline, directory: Path | None, resume: bool, callback: Callback) -> None:
        start_time = time.perf_counter()
        self._predictors.clear()  # they were captured from the model as it was
        digest = samples.digest() if directory is not None or get_communicator().size > 1 else ""
        if len(set(get_communicator().gather(digest))) > 1:
            raise InputError("the processes of this call do not read the same images; give all of them the same folder")
        stopped = self._restore_stopped_call(directory, digest) if resume else None
        known_names = set(self.classes)
        new = tuple(name for name in samples.classes if name not in known_names)
        if stopped is None:
            self._begin_task(new)
        else:
            new = tuple(stopped.config["progress"]["new_classes"])
        known = tuple(name for name in samples.classes if name not in new)

        trained = samples if self.method.trains_on_known_classes or not known else samples.select_classes(new)
        counted = trained if len(trained) else samples
        self.method.choose_effort(len(counted), len(counted.classes))
        effort = self.method.effort
        if len(trained):
            first_epoch = stopped.config["progress"]["epochs_done"] if stopped else 0
            epochs = self.method.epochs
            if epochs:
                pipeline.upload(trained)  # before the first pass, which then need not upload the same images
            if stopped is None:
                self.method.choose_by_images(self._eval_batches(trained, pipeline), self._make_generator("choose"))
            choices = self.method.describe_choices(len(trained))
            callback(LearnStarted(len(self.tasks), new, known, len(trained), epochs, first_epoch, choices))
            all_batches = self._eval_batches(samples, pipeline)
            if stopped is None:
                batches = all_batches if trained is samples else self._eval_batches(trained, pipeline)
                self.method.prepare(batches, self._make_generator("prepare"))

            throttle = Throttle()

            def save(ended: EpochEnded, optimizer: torch.optim.Optimizer) -> None:
                self.history.append({"call": self.num_calls, **ended.as_record()})
                if directory is not None and get_communicator().rank == 0:
                    progress = {"epochs_done": ended.epoch + 1, "digest": digest, "new_classes": new}
                    throttle(lambda: self._write(directory / IN_PROGRESS, progress, optimizers.get_optimizer_state(optimizer)))

            optimizer_tensors = select_by_prefix(stopped.tensors, "optimizer.") if stopped else None
            seed = derive_seed(self.seed, "call", self.num_calls)
            epoch_batches = pipeline.train_batches(trained, self._outputs(trained), self.method.options, seed, effort.batch_size)
            with self._compile_for(len(trained) * epochs):
                trainer.fit(
                    self.method,
                    epoch_batches,
                    start=first_epoch,
                    optimizer_tensors=optimizer_tensors,
                    callback=callback,
                    save=save,
                    num_images=len(trained),
                )
        else:
            all_batches = self._eval_batches(samples, pipeline)
        callback(Consolidating())
        self.method.consolidate(all_batches, self._make_generator("consolidate"))
        if get_communicator().size > 1 and not self.method.divides_passes:
            for tensor in self.method.state().values():
                get_communicator().copy_from_first(tensor)  # processes on unlike machines may have come to unlike results
        self._calibrate_by(self.method.honest_scores)
        callback(LearnEnded(len(self.classes), time.perf_counter() - start_time))

    @contextmanager
    def _compile_for(self, num_images: int) -> Iterator[None]:
        """Compile the network within the context if that pays for a training on so many images, and the method can be compiled."""
        if self.method.options.compile is True and not self.method.can_compile_step:
            message = f"option 'compile' has no effect: '{self.method.name}' cannot be compiled with these options"
            warnings.warn(message, CapromptWarning, stacklevel=2)
        if self.method.options.compile == "auto":
            is_worth_it = self.method.can_compile_step and trainer.is_worth_compiling(num_images, self.device)
            self._vit.set_compiled(is_worth_it)
        try:
            yield
        finally:
            self._configure_backbone()

    def _calibrate_by(self, scores: HonestScores | None) -> None:
        """Fit the probabilities to images that were scored as if they had not been learned; not to those of a single class."""
        if scores is None or len(self.classes) < 2:
            return
        labels = torch.tensor(self.table.name_of_output, device=scores.labels.device)[scores.labels]
        optimistic = None if scores.optimistic is None else self.table.merge_logits(scores.optimistic)
        self._add_evidence(make_evidence(self.table.merge_logits(scores.logits), labels, self.evidence, optimistic))
        self.method.honest_scores = None

    def _add_evidence(self, evidence: Evidence) -> None:
        self.calibration, self.evidence = fit_calibration([*self.evidence, evidence])

    def _eval_batches(self, samples: Samples, pipeline: InputPipeline) -> Batches:
        """Return repeatable batches of every image once, without augmentation; the released protocol needs one class per batch.

        Of several processes, each gets its share of the batches if the method divides its passes.
        """
        size, targets = choose_batch_size(len(samples), None, self.device), self._outputs(samples)
        options = self.method.input_options
        groups = self._group(options, targets, size)
        if self.method.divides_passes:
            groups = deal_batches(groups, get_communicator())

        def start(share: float | None) -> Batches:
            own = options if share is None else options.model_copy(update={"test_crop": share})
            for positions, own_size in groups:
                yield from pipeline.eval_part(samples, positions, [targets[i] for i in positions], own, own_size)

        return RepeatableBatches(start, partial(measure_short_side, samples.images), keep=pipeline.can_keep(len(samples)))

    def _group(self, options: Options, targets: Sequence[int], size: int) -> list[tuple[list[int], int]]:
        """Return which images share batches. Kept features are computed class by class.

        Rounding depends on an image's place in its batch; so the features of a class do not depend on other classes.
        """
        if not getattr(options, "keep_features", False):
            return protocols.group_for_batches(options, targets, size)
        return [([i for i, own in enumerate(targets) if own == target], size) for target in sorted(set(targets))]

    def _begin_task(self, new: Sequence[str]) -> None:
        if new:
            self.table.add(new)
            self.method.set_class_names(self.table.output_names)
            self.method.begin_task(len(new), self._make_generator("begin"))

    def _make_generator(self, purpose: str) -> torch.Generator:
        return make_generator(self.seed, "call", self.num_calls, purpose)

    def fit(self, source: Any, labels: Any = None, **arguments: Any) -> ContinualClassifier:
        """Learn a source, or images and their labels, as `learn` does: what was learned before stays."""
        self.learn(source if labels is None else (source, labels), **arguments)
        return self

    # -- changes to classes ----------------------------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self.table.rename(old, new, self.describe_lesson())

    def join(self, names: Sequence[str], into: str) -> None:
        """Make one class of several; its probability is the sum of theirs."""
        self.table.join(names, into, self.describe_lesson())

    def forget(self, name: str, *, images: Source | None = None, approximate: bool = False) -> None:
        """Remove a class, exactly: the model is then the one that was never taught it.

        That is possible where nothing was trained on its images, and its share in sums over all images is known: from features
        that the model keeps (option `keep_features`), or from `images`, which must be all that were learned of it. Otherwise an
        `InputError` says why not; with `approximate`, its outputs, statistics and records are removed, and what was trained on
        its images together with others stays.
        """
        self.require_learning_state()
        outputs = self.table.find_outputs(name)
        if len(outputs) == len(self.table.name_of_output):
            raise InputError(f"'{name}' is the only class of this model; delete the model instead")
        samples = self._read_learned(name, images) if images is not None else None
        reason = self.method.explain_inexact(samples is not None)
        if reason is not None and not approximate:
            raise InputError(
                f"'{name}' cannot be forgotten exactly: {reason}; to remove its outputs and records only, set approximate=True"
            )
        with self._restore_on_failure():
            pipeline = InputPipeline(self.backbone, self.device)
            batches = self._eval_batches(samples, pipeline) if samples is not None else None
            for output in reversed(outputs):
                self.method.subtract_class(output, batches)
                self._predictors.clear()
                self.method = remove_class(self.method, output, self._build_method)
                self.table.remove(output, output == outputs[0], self.describe_lesson())
            self.method.refit()

    def _read_learned(self, name: str, source: Source) -> Samples:
        """Return the images of a class from a source; they must be exactly those that were learned."""
        samples = validate_images(read_source(source), InputPipeline(self.backbone, self.device).cache, skip_bad=False)
        samples = samples.select_classes([name])
        outputs = self.table.find_outputs(name)
        if len(outputs) > 1:
            raise InputError(f"'{name}' was joined from {len(outputs)} classes; it can only be forgotten without its images")
        count = self.table.counts[outputs[0]]
        if len(samples) != count or len(self.table.find_learned(samples)) != count:
            raise InputError(f"these are not the {count} images of '{name}' that were learned; give exactly those")
        return samples


def _rename_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `learn` under their current names, with a warning; an unknown one is a TypeError."""
    for name in arguments:
        if name not in RENAMED_ARGUMENTS:
            raise TypeError(f"ContinualClassifier.learn() got an unexpected keyword argument '{name}'")
        warnings.warn(f"'{name}' of learn is now '{RENAMED_ARGUMENTS[name]}'", DeprecationWarning, stacklevel=3)
    return {RENAMED_ARGUMENTS[name]: value for name, value in arguments.items()}
