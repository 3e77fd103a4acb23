"""Bodies of requests and answers, as the OpenAPI schema lists them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ClassEntry",
    "ErrorReply",
    "ForgetRequest",
    "Health",
    "JobReply",
    "JobRequest",
    "JoinRequest",
    "ModelDetails",
    "ModelRequest",
    "ModelSummary",
    "PredictReply",
    "RenameRequest",
    "UploadChange",
    "UploadReply",
]

ClassName = Annotated[str, Field(max_length=255)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorReply(BaseModel):
    """A refusal."""

    error: str = Field(description="One sentence: what is wrong, and what to do.")


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"]
    version: str
    models: int
    can_create: bool = Field(description="Whether models can be added.")


class ModelRequest(_Request):
    """A new model."""

    name: str = Field(description="Up to 64 letters, digits, '-' and '_'.")


class ModelSummary(BaseModel):
    """A model of the server."""

    name: str
    classes: int
    images: int = Field(description="Number of images that were learned.")
    lessons: int = Field(description="Number of lessons and edits.")
    method: str
    backbone: str
    bytes: int = Field(description="Size on disk.")
    job: str | None = Field(description="The job that runs or was interrupted.")
    busy: bool = Field(description="Whether a job runs.")


class Lesson(BaseModel):
    """A lesson or an edit."""

    when: str = Field(description="ISO 8601 date and time.")
    what: str = Field(description="learn, rename, join, forget or calibrate.")
    classes: list[str]
    images: int
    seconds: float | None
    settings: dict[str, Any]


class Part(BaseModel):
    """A part of a model on disk."""

    name: str
    bytes: int


class LimitsReply(BaseModel):
    """Limits of this server."""

    body_bytes: int
    images: int
    pixels: int


class ModelDetails(BaseModel):
    """Everything about a model but its classes."""

    name: str
    classes: int
    images: int
    method: str
    backbone: str
    bytes: int
    job: str | None
    busy: bool
    can_undo: bool
    can_learn: bool
    false_alarm_rate: float | None = Field(description="Share of images of learned classes that are marked as unknown, if any are.")
    coverage: bool = Field(description="Whether predictions can be asked for with a coverage.")
    image_size: int | None = Field(description="Side of the square that the network sees, in pixels.")
    lessons: list[Lesson]
    parts: list[Part]
    keeps: list[str] = Field(description="What is kept of images.")
    limits: LimitsReply


class ClassEntry(BaseModel):
    """A class of a model."""

    name: str
    images: int
    learned: str = Field(description="ISO 8601 date and time of the first lesson with it; empty if unknown.")
    lesson: int | None = Field(description="Index of that lesson.")
    thumbnail: str | None = Field(description="Address of a picture, if the server keeps any.")


class ScoreEntry(BaseModel):
    """A class and its probability."""

    label: str | int
    score: float


class PredictionEntry(BaseModel):
    """The prediction for an image, or what is wrong with the image."""

    file: str
    label: str | int | None = None
    score: float | None = None
    top: list[ScoreEntry] | None = None
    unknown: bool | None = Field(default=None, description="Whether it is probably of none of the learned classes.")
    known_score: float | None = None
    task_weights: list[float] | None = None
    labels: list[str | int] | None = Field(default=None, description="With a coverage: classes that hold the true one.")
    error: str | None = Field(default=None, description="Why there is no prediction.")


class PredictReply(BaseModel):
    """Predictions in the order of the images."""

    predictions: list[PredictionEntry]
    milliseconds: float


class UploadReply(BaseModel):
    """A new upload."""

    id: str


class FileProblemEntry(BaseModel):
    """A file that is not part of an upload."""

    file: str
    problem: str


class UploadClass(BaseModel):
    """A class of an upload."""

    name: str
    images: int
    known: bool = Field(description="Whether the model has learned this class.")


class UploadChange(BaseModel):
    """An upload after a change."""

    accepted: int = Field(description="Number of images of this request that are part of the upload now.")
    classes: list[UploadClass]
    problems: list[FileProblemEntry]
    warnings: list[str]


class JobRequest(_Request):
    """A new job."""

    kind: Literal["learn", "evaluate", "export"]
    upload: str | None = Field(default=None, max_length=64, description="For learn and evaluate.")
    hold_out: float = Field(
        default=0.2, ge=0, le=0.5, strict=False, description="Share of images to test with instead of learning."
    )
    format: Literal["onnx", "browser"] = Field(default="onnx", description="For export.")


class JobReply(BaseModel):
    """A job."""

    id: str
    kind: Literal["learn", "evaluate", "export"]
    state: Literal["queued", "running", "done", "failed", "canceled", "interrupted"]
    progress: float = Field(description="From 0 to 1.")
    stage: str
    seconds: float
    seconds_left: float | None
    error: str | None
    result: dict[str, Any] | None


class RenameRequest(_Request):
    """A new name of a class."""

    old: ClassName
    new: ClassName


class JoinRequest(_Request):
    """Classes to become one."""

    names: list[ClassName] = Field(max_length=10_000)
    into: ClassName


class ForgetRequest(_Request):
    """A class to remove."""

    name: ClassName
    approximate: bool = False
