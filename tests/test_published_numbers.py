"""The recipes' numbers beside rates and steps, from the papers and their code."""

import pytest

from encoderjax.config_loading import load_config
from encoderjax.phases import phases_of

SPARED = ("norm", "bias")
ADAM = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
GOOGLES = ADAM | {"bias_correction": False, "decay_exclude": SPARED, "clip_norm": 1.0}
# One group of parameters: norms and biases are decayed, too.
FAIRSEQS = ADAM | {"bias_correction": True, "decay_exclude": (), "schedule": "linear"}
OPTIMISERS = {
    "bert": GOOGLES | {"schedule": "bert"},
    "bert_large_lamb": GOOGLES
    | {
        "name": "lamb",
        "bias_correction": True,
        "trust_ratio": "decayed",
        "schedule": "polynomial",
        "power": 0.5,
    },
    "roberta": FAIRSEQS | {"b2": 0.98, "clip_norm": 0.0},
    "xlm_roberta": FAIRSEQS | {"b2": 0.98, "clip_norm": 0.0},
    "albert": GOOGLES
    | {"name": "lamb", "trust_ratio": "not_excluded", "schedule": "bert"},
    "spanbert": FAIRSEQS | {"eps": 1e-8, "clip_norm": 1.0},
    "xlnet": GOOGLES | {"schedule": "linear", "end_share": 0.001},
    "deberta": GOOGLES | {"schedule": "linear", "end_share": 0.0},
    "deberta_v3": GOOGLES | {"b2": 0.98, "schedule": "linear"},
    "electra": GOOGLES | {"schedule": "electra"},
    "distilbert": ADAM
    | {
        "b2": 0.98,
        "bias_correction": True,
        "weight_decay": 0.0,
        "clip_norm": 5.0,
        "schedule": "linear",
    },
    "modernbert": {
        "name": "stable_adamw",
        "b1": 0.9,
        "b2": 0.98,
        "eps": 1e-6,
        "weight_decay": 1e-5,
        "decoupled_decay": True,
        "decay_exclude": SPARED,
        "clip_norm": 0.0,
        "schedule": "constant",
    },
}

# Of `data`; cuts of forms that draw nothing are not told.
FULL_SENTENCES = {
    "form": "full_sentences",
    "separators": "sentences",
    "long_sentences": "skip",
    "masking": "dynamic",
}
PAIRS = {"form": "segment_pair", "short_rate": 0.1, "masking": "static"}
STREAM = {"form": "contiguous", "masking": "dynamic"}
ROWS = {
    "bert": PAIRS | {"second": "random", "dupe_factor": 10},
    "bert_large_lamb": PAIRS | {"second": "random", "dupe_factor": 5},
    "roberta": FULL_SENTENCES,
    "xlm_roberta": FULL_SENTENCES,
    "albert": PAIRS | {"second": "swapped", "dupe_factor": 40},
    "spanbert": {
        "form": "doc_sentences",
        "separators": "none",
        "long_sentences": "skip",
        "batch_tokens": 256 * 512,
        "masking": "dynamic",
    },
    "xlnet": {
        "form": "reuse_pair",
        "second": "random",
        "separators": "documents",
        "reuse_length": 256,
        "bidirectional": True,
    },
    "deberta": STREAM,
    "deberta_v3": STREAM,
    "electra": {
        "form": "segment_halves",
        "short_rate": 0.05,
        "dupe_factor": 1,
        "masking": "dynamic",
    },
    "distilbert": {"form": "doc_sentences", "masking": "dynamic"},
    "modernbert": {"form": "packed", "masking": "dynamic"},
}

# Of masked LM, or what XLNet has in its place: the selection, then (mask, random).
BERTS = {"rate": 0.15, "select": "tokens", "count": "exact", "specials": False}
SELECTION = {
    "bert": (BERTS | {"max_predictions": 20}, (0.8, 0.1)),
    "roberta": (BERTS | {"count": "probabilistic", "specials": True}, (0.8, 0.1)),
    "xlm_roberta": (BERTS | {"count": "probabilistic", "specials": True}, (0.8, 0.1)),
    "albert": (
        BERTS | {"select": "ngrams", "max_ngram": 3, "max_predictions": 77},
        (0.8, 0.1),
    ),
    "spanbert": (BERTS | {"select": "spans"}, (0.8, 0.1)),
    "deberta": (
        BERTS | {"select": "ngram_windows", "max_ngram": 3, "max_predictions": 80},
        (0.8, 0.1),
    ),
    "deberta_v3": (
        BERTS | {"select": "ngram_windows", "max_ngram": 1, "max_predictions": 80},
        (1.0, 0.0),
    ),
    "electra_small": (
        BERTS | {"select": "with_replacement", "max_predictions": 19},
        (0.85, 0.0),
    ),
    "electra_base": (
        BERTS | {"select": "with_replacement", "max_predictions": 79},
        (0.85, 0.0),
    ),
    "electra_large": (
        {"rate": 0.25, "select": "with_replacement", "max_predictions": 130},
        (0.85, 0.0),
    ),
    "distilbert": (BERTS | {"select": "weighted", "smoothing": 0.7}, (0.8, 0.1)),
    "modernbert": (
        {"rate": 0.3, "select": "tokens", "count": "bernoulli", "specials": True},
        (0.8, 0.1),
    ),
}
WEIGHTS = {  # of the terms of the loss
    "bert": {"mlm_loss": 1.0, "nsp_loss": 1.0},
    "albert": {"mlm_loss": 1.0, "sop_loss": 1.0},
    "spanbert": {"mlm_loss": 1.0, "sbo_loss": 1.0},
    "xlnet": {"plm_loss": 1.0},
    "deberta_v3": {"mlm_loss": 1.0, "rtd_loss": 50.0},
    "electra": {"mlm_loss": 1.0, "rtd_loss": 50.0},
    "distilbert": {
        "mlm_loss": 2.0,
        "distillation_soft_loss": 5.0,
        "distillation_cosine_loss": 1.0,
    },
}

# Vocabulary, dropout of states and of attention, activation.
UNCASED = (30_522, 0.1, 0.1, "gelu_tanh")
MODELS = {
    "bert": UNCASED,
    "bert_large_lamb": (30_522, 0.1, 0.1, "gelu"),
    "roberta": (50_265, 0.1, 0.1, "gelu"),
    "xlm_roberta": (250_002, 0.1, 0.1, "gelu"),
    "albert": (30_000, 0.1, 0.1, "gelu_tanh"),
    "albert_xxlarge": (30_000, 0.0, 0.0, "gelu_tanh"),
    "spanbert": (28_996, 0.1, 0.1, "gelu"),
    "xlnet": (32_000, 0.1, 0.1, "gelu_tanh"),
    "deberta": (50_265, 0.1, 0.1, "gelu"),
    "deberta_v3": (128_100, 0.1, 0.1, "gelu"),
    "electra": UNCASED,
    "distilbert": (30_522, 0.1, 0.1, "gelu"),
    "modernbert": (50_368, 0.0, 0.0, "gelu"),
}
NAMES = (
    *("bert_base", "bert_large", "bert_large_lamb", "roberta_base", "roberta_large"),
    *("albert_base", "albert_large", "albert_xlarge", "albert_xxlarge"),
    *("spanbert_base", "spanbert_large", "xlnet_base", "xlnet_large"),
    *("deberta_base", "deberta_large"),
    *("deberta_v3_small", "deberta_v3_base", "deberta_v3_large"),
    *("electra_small", "electra_base", "electra_large", "distilbert_base"),
    *("xlm_roberta_base", "xlm_roberta_large", "modernbert_base", "modernbert_large"),
)


def published(table, name):
    """Returns what stands in a table for a recipe, or for its family."""
    found = [key for key in table if name == key or name.startswith(f"{key}_")]
    return table[max(found, key=len)] if found else None


def same(found, expected):
    """Compares those fields that are told."""
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("name", NAMES)
def test_recipes_have_the_published_numbers(name):
    config = load_config(f"configs/{name}.py")
    same(config.optimizer, published(OPTIMISERS, name))
    same(config.data, published(ROWS, name))
    objectives = {objective.name: objective for objective in config.objectives}
    if name.startswith("xlnet"):
        expected = {"predict_share": 1 / 6, "max_ngram": 5, "permute_within": 256}
        same(objectives["plm"], expected)
    else:
        mlm, (selection, shares) = objectives["mlm"], published(SELECTION, name)
        same(mlm, selection)
        assert (mlm.replace.mask, mlm.replace.random) == shares
    terms = [objective.loss_weights for objective in config.objectives]
    weights = {term: weight for each in terms for term, weight in each.items()}
    assert weights == (published(WEIGHTS, name) or {"mlm_loss": 1.0})
    model = config.model.encoder
    assert published(MODELS, name) == (
        model.vocab_size,
        model.dropout_rate,
        model.attention_dropout_rate,
        model.activation,
    )
    # Where the vocabulary is trained, it is as large as the model's.
    kind, _, size = config.data.tokenizer.rpartition(":")
    assert not kind or int(size) == model.vocab_size


def test_random_tokens_are_those_of_the_references():
    replaced = {}
    for name in ("bert_base", "roberta_base", "xlm_roberta_base", "spanbert_base"):
        mlm = load_config(f"configs/{name}.py").objectives[0]
        replace = mlm.replace
        replaced[name] = (replace.distribution, replace.skip_first, replace.unit)
    assert replaced == {
        "bert_base": ("uniform", 0, "token"),
        "roberta_base": ("uniform", 4, "token"),
        "xlm_roberta_base": ("uniform", 4, "token"),
        "spanbert_base": ("unigram", 0, "span"),
    }


@pytest.mark.parametrize("size", ["base", "large"])
def test_modernbert_reads_its_tokens_in_every_phase(size):
    """As many as table 3 has of each, and of the warmup."""
    config = load_config(f"configs/modernbert_{size}.py")
    phases, read, rates = phases_of(config), {}, {}
    for phase in phases:
        data, name = phase.config.data, phase.name.partition("_")[0]
        tokens = (phase.last - phase.first) * data.batch_size * data.length
        read[name] = read.get(name, 0) + tokens
        o = phase.config.optimizer
        rates[name] = (o.learning_rate, o.schedule, o.weight_decay)
    warmed = sum(
        max(0, min(phase.last, config.optimizer.warmup_steps) - phase.first)
        * phase.config.data.batch_size
        * phase.config.data.length
        for phase in phases
    )
    if size == "base":
        expected = {"rows": 50e9, "stable": 1.669e12, "extension": 250e9, "decay": 50e9}
        assert warmed == pytest.approx(3e9, rel=1e-3)
        assert rates == {
            "rows": (8e-4, "constant", 1e-5),
            "stable": (8e-4, "constant", 1e-5),
            "extension": (3e-4, "constant", 1e-5),
            "decay": (3e-4, "wsd", 1e-5),
        }
    else:
        expected = {"rows": 10e9, "stable": 890e9, "rollback": 800e9}
        expected |= {"extension": 250e9, "decay": 50e9}
        assert warmed == pytest.approx(2e9, rel=1e-3)
        assert rates == {
            "rows": (5e-4, "constant", 1e-5),
            "stable": (5e-4, "constant", 1e-5),
            "rollback": (5e-5, "constant", 1e-6),
            "extension": (5e-5, "constant", 1e-6),
            "decay": (5e-5, "wsd", 1e-6),
        }
    assert read == {name: pytest.approx(n, rel=1e-3) for name, n in expected.items()}
