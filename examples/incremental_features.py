"""Train an incremental classifier on features of images, with the estimators for scikit-learn.

    python examples/incremental_features.py

The images are the digits of scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

from caprompt import load_dataset
from caprompt.sklearn import FeatureExtractor, IncrementalRidgeClassifier

digits = load_dataset("digits")
extractor = FeatureExtractor().fit()
classifier = IncrementalRidgeClassifier()
for names in (["one", "seven"], ["zero"], ["four", "nine", "eight"]):
    train = digits.train.select_classes(names).select_per_class(20)
    classifier.partial_fit(extractor.transform(train), train.labels)
    test = digits.test.select_classes(classifier.classes_).select_per_class(20)
    accuracy = classifier.score(extractor.transform(test), test.labels)
    print(f"{len(classifier.classes_)} classes: accuracy {100 * accuracy:.1f} %")
