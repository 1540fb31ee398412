"""What a run directory holds, as those who write it and those who read it agree."""

FORMAT = 1
"""Version of the run directory: of its files, columns and their meaning. Part of every run's identity."""

SEARCH = "lr_search"
"""Within a results directory, that of the trials by which learning rates are chosen."""

TABLES = {
    "train": {
        "step": "int64",
        "tokens": "int64",
        "loss": "float64",
        "lr": "float64",
        "grad_norm": "float64",
        "tokens_per_second": "float64",
    },
    "eval": {
        "length": "int64",
        "split": "str",
        "examples": "int64",
        "tokens": "int64",
        "loss": "float64",
        "perplexity": "float64",
        "token_accuracy": "float64",
        "exact_match": "float64",
    },
    "training_set": {
        "length": "int64",
        "examples": "int64",
        "tokens": "int64",
        "loss": "float64",
        "perplexity": "float64",
        "token_accuracy": "float64",
        "exact_match": "float64",
    },
    "validation": {
        "step": "int64",
        "length": "int64",
        "examples": "int64",
        "tokens": "int64",
        "loss": "float64",
        "perplexity": "float64",
        "token_accuracy": "float64",
        "exact_match": "float64",
    },
    "positions": {
        "length": "int64",
        "position": "int64",
        "tokens": "int64",
        "loss": "float64",
        "perplexity": "float64",
        "accuracy": "float64",
    },
    "slices": {
        "length": "int64",
        "slice": "str",
        "value": "int64",
        "examples": "int64",
        "tokens": "int64",
        "loss": "float64",
        "accuracy": "float64",
    },
    "examples": {
        "length": "int64",
        "example": "int64",
        "tokens": "int64",
        "loss": "float64",
        "token_accuracy": "float64",
        "exact_match": "float64",
    },
    "baselines": {"length": "int64", "chance": "float64", "majority": "float64"},
    "floor": {"length": "int64", "tokens": "int64", "loss": "float64", "perplexity": "float64"},
    "floor_positions": {
        "length": "int64",
        "position": "int64",
        "tokens": "int64",
        "loss": "float64",
        "perplexity": "float64",
    },
}
"""The columns of NAME.csv, in order, with their types in a DataFrame."""

SPLITS = ("train_lengths", "extrapolation")
"""What the rows of eval.csv are of, by length: examples that nothing was trained on, in both."""

OPTIONAL = frozenset({"training_set", "validation", "floor", "floor_positions", "examples"})
"""Tables that only some runs have: those of a task with a finite training set, or whose ideal loss is known; those that
may stop early; and `examples`, which runs from before there was such a table lack."""

ON_DEMAND = frozenset({"examples"})
"""Tables longer than all others of a run together: reports read them of the runs that they compare example by example,
and W&B has them among the run's files alone."""
