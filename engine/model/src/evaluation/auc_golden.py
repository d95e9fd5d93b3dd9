"""Computes the expected values of the table in tests.rs with scikit-learn.

`python auc_golden.py` prints the table. It needs NumPy and scikit-learn; the tests need neither, since they generate
the same samples themselves.
"""

import math

import numpy
from sklearn.metrics import roc_auc_score

# Seed, samples, distinct scores, kind of weights.
CASES = [
    (1, 8, 3, "counts"),
    (2, 50, 5, "counts"),
    (3, 1000, 7, "fractions"),
    (4, 1000, 1 << 20, "fractions"),
    (5, 10_000, 100, "tail"),
    (6, 10_000, 1 << 20, "tail"),
    (7, 50_000, 2, "counts"),
    (8, 200_000, 1000, "tail"),
    (9, 200_000, 1 << 20, "fractions"),
    (10, 200_000, 1 << 20, "counts"),
]


def numbers(seed):
    """SplitMix64."""
    mask, state = (1 << 64) - 1, seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def weight(kind, word):
    """A weight that single precision represents exactly."""
    match kind:
        case "counts":
            return float(word % 4)
        case "fractions":
            return (word >> 40) / (1 << 20)
        case "tail":
            return math.ldexp(1 + (word >> 40) % 1024 / 1024, word % 31 - 15)


def samples(seed, count, scores, kind):
    words = numbers(seed)
    for _ in range(count):
        score = next(words) % scores
        label = next(words) % 100 < 20 + 40 * score // scores
        yield (score - scores / 2) / 8, label, weight(kind, next(words))


def main():
    for seed, count, scores, kind in CASES:
        score, label, weights = map(numpy.array, zip(*samples(seed, count, scores, kind)))
        auc = roc_auc_score(label, score, sample_weight=weights)
        print(f"    ({seed}, {count}, {scores}, Weights::{kind.title()}, {float(auc)!r}),")


if __name__ == "__main__":
    main()
