"""Failures that aot_eager shares, by the beginning of a case's key, with the reason; one that passes turns the slice red."""

KNOWN: dict[str, str] = {
    "lu/float32/out/": "Dynamo gives another container than torch.lu gives with out=",
}

# Where torch's tolerances are too narrow: what a case's key begins with, relative and absolute tolerance, and the reason.
_ONE_ELEMENT = "the gradient of normalizing one element is 0; eager returns what is left of cancelling terms of the size of rstd (316)"
_NEAR_ONE = "1 - x * x, by which the gradient is divided, cancels near 1; a kernel that contracts x * x and the difference to one rounding differs by it"
_DISTANCES = "the difference of two distances of some hundreds, each of which is rounded to 3e-5"
TOLERANCES: dict[str, tuple[float, float, str]] = {
    "native_layer_norm/float32/train/": (1.3e-6, 1e-4, _ONE_ELEMENT),
    "nn_functional_layer_norm/float32/train/": (1.3e-6, 1e-4, _ONE_ELEMENT),
    "asin/float32/train/": (1e-5, 1e-5, _NEAR_ONE),
    "nn_functional_triplet_margin_loss/uint8/": (1.3e-6, 1e-4, _DISTANCES),
    "nn_functional_triplet_margin_with_distance_loss/uint8/": (1.3e-6, 1e-4, _DISTANCES),
    "atanh/float32/train/": (1e-5, 1e-5, _NEAR_ONE),
}

# The same for modules and optimizers, by the whole key.
_MARGIN = "torch's shape function of multilabel_margin_loss gives (1,) for one sample without reduction; eager gives ()"
KNOWN_MODULES: dict[str, str] = {
    "nn.MultiLabelMarginLoss/train/6-7": _MARGIN,
    "nn.MultiLabelMarginLoss/eval/6-7": _MARGIN,
}

# Optimizers that count steps in a tensor on the CPU unless they are capturable or fused.
_COUNTING = "Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop".split()


def moves_counters(key: str, device: str) -> bool:
    """Dynamo moves step counters of parameters on CUDA to the device, with any backend."""
    name, way = key.split("/")[:2]
    return device == "cuda" and name in _COUNTING and way in ("forloop", "foreach")
