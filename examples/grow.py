"""Learn new classes in several calls; the classes need not be known in advance.

    python examples/grow.py

The images are the digits of scikit-learn, so nothing is downloaded. `learn` also accepts a folder
with a subfolder per class, a CSV file of paths and labels, or (images, labels).
"""

from __future__ import annotations

from caprompt import ContinualClassifier, load_dataset

digits = load_dataset("digits")

model = ContinualClassifier(epochs=1, flip=0.0)
for names in (["one", "seven"], ["zero"], ["four", "nine", "eight"]):
    model.learn(digits.train.select_classes(names))
    evaluation = model.evaluate(digits.test.select_classes(model.classes))
    print(f"{model}: accuracy {evaluation.accuracy:.1f} %")

zero = digits.test.select_classes(["zero"]).images[0]
print(model.predict_one(zero))
