"""Random models of transformers to compare with, and folders of them."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

torch.set_num_threads(1)  # the machine is shared with jax's threads

# All sizes differ, so that no two dimensions can be taken for each other.
SIZES = {
    "vocab_size": 99,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}

_WORDS = """
    i you we they love hate because are is was the a of and to in it kind happy sad
    good bad cat dog sun rain king queen . , ! ? not very so my your all one two day
    ##ing
"""
_LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
# Two fewer than the table has rows: those are never to be predicted.
VOCABULARY = list(
    dict.fromkeys(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        + _WORDS.split()
        + _LETTERS
        + [f"##{letter}" for letter in _LETTERS]
    )
)


def random_bert(model_class=BertForPreTraining, *, seed: int = 0, **changes):
    """Returns a model whose every tensor matters, biases and norms as well."""
    config = BertConfig(**(SIZES | changes))
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = 0.15 * torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise + (1.0 if name.endswith("LayerNorm.weight") else 0.0))
    return model


def save_folder(model, folder: Path, **kwargs) -> Path:
    """Writes a model and a tokenizer of its vocabulary size."""
    model.save_pretrained(folder, **kwargs)
    tokens = VOCABULARY[: model.config.vocab_size]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def random_batch(vocab_size: int = 99) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, mask and segments [4, 17], padded to different lengths."""
    rng = np.random.default_rng(0)
    lengths_B = np.array([17, 9, 12, 5])
    mask_BL = np.arange(17) < lengths_B[:, None]
    ids_BL = np.where(mask_BL, rng.integers(5, vocab_size, mask_BL.shape), 0)
    segments_BL = (np.arange(17) >= lengths_B[:, None] // 2) & mask_BL
    return ids_BL.astype(np.int32), mask_BL, segments_BL.astype(np.int32)


def torch_outputs(model, ids_BL, mask_BL, segments_BL, **kwargs):
    """Returns what a model of transformers makes of a batch."""
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(ids_BL, dtype=torch.long),
            attention_mask=torch.tensor(mask_BL, dtype=torch.long),
            token_type_ids=torch.tensor(segments_BL, dtype=torch.long),
            **kwargs,
        )
