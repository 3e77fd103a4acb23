"""Teach a classifier new classes months apart, from arrays, files or folders; nothing is declared ahead.

python examples/grow.py
"""

from __future__ import annotations

from caprompt import ContinualClassifier
from caprompt.data.datasets.digits import load_digits

train, test = load_digits()

model = ContinualClassifier(epochs=1, flip=0.0)
for names in (["one", "seven"], ["zero"], ["four", "nine", "eight"]):
    model.learn(train.of_classes(names))
    print(model, f"{model.evaluate(test.of_classes(model.classes)).accuracy:.1f} % right")

print(model.predict_one(test.of_classes(["zero"]).pictures[0]))
