"""A small random model of transformers for every family, in several forms."""

from collections.abc import Mapping

import numpy as np
import torch
import transformers as t

from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.interop.task_huggingface import task_shapes
from encoderjax.interop.weights import tree_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.task_heads import TaskHead

torch.set_num_threads(1)  # the machine is shared with jax's threads

# All sizes differ, so that no two dimensions can be taken for each other.
SIZES = {
    "vocab_size": 99,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
}
LENGTH = 31
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_RELATIVE = {"relative_attention": True, "position_biased_input": False}
_V3 = _RELATIVE | {
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_buckets": 8,
    "max_relative_positions": 24,
}
_XLNET = {"d_model": 48, "n_layer": 3, "n_head": 4, "d_inner": 80, "vocab_size": 99}
_DISTIL = {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 80, "vocab_size": 99}
_MODERN = SIZES | _IDS | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 6}
_ALBERT = SIZES | {"embedding_size": 20}

# name: class, config. The first of a family has its published structure.
MODELS = {
    "bert": (t.BertForPreTraining, t.BertConfig(**SIZES)),
    "roberta": (
        t.RobertaForMaskedLM,
        t.RobertaConfig(**SIZES, type_vocab_size=1, layer_norm_eps=1e-5),
    ),
    "roberta_other_padding": (
        t.RobertaForMaskedLM,
        t.RobertaConfig(**SIZES, hidden_act="gelu_new", pad_token_id=4),
    ),
    "xlm_roberta": (t.XLMRobertaForMaskedLM, t.XLMRobertaConfig(**SIZES)),
    "albert": (t.AlbertForPreTraining, t.AlbertConfig(**_ALBERT)),
    "albert_groups": (
        t.AlbertForMaskedLM,
        t.AlbertConfig(
            **_ALBERT | {"num_hidden_layers": 5},
            num_hidden_groups=2,
            inner_group_num=2,
            hidden_act="relu",
        ),
    ),
    "electra_discriminator": (
        t.ElectraForPreTraining,
        t.ElectraConfig(**SIZES, embedding_size=20),
    ),
    "electra_generator": (
        t.ElectraForMaskedLM,
        t.ElectraConfig(**SIZES, embedding_size=48, hidden_act="gelu_new"),
    ),
    "distilbert": (
        t.DistilBertForMaskedLM,
        t.DistilBertConfig(**_DISTIL, max_position_embeddings=40),
    ),
    "modernbert": (
        t.ModernBertForMaskedLM,
        t.ModernBertConfig(**_MODERN | {"num_hidden_layers": 6}),
    ),
    "modernbert_other_pattern": (
        t.ModernBertForMaskedLM,
        t.ModernBertConfig(
            **_MODERN | {"num_hidden_layers": 5},
            global_attn_every_n_layers=2,
            global_rope_theta=500.0,
            classifier_activation="silu",
        ),
    ),
    "xlnet": (t.XLNetLMHeadModel, t.XLNetConfig(**_XLNET, mem_len=7)),
    "xlnet_clamped": (
        t.XLNetLMHeadModel,
        t.XLNetConfig(**_XLNET, clamp_len=5, bi_data=True, ff_activation="relu"),
    ),
    "deberta": (
        t.DebertaForMaskedLM,
        t.DebertaConfig(**SIZES, **_RELATIVE, pos_att_type=["c2p", "p2c"]),
    ),
    "deberta_biased_input": (
        t.DebertaForMaskedLM,
        t.DebertaConfig(
            **SIZES,
            relative_attention=True,
            pos_att_type=["c2p"],
            max_relative_positions=7,
            type_vocab_size=2,
        ),
    ),
    "deberta_v2": (
        t.DebertaV2ForMaskedLM,
        t.DebertaV2Config(**SIZES, **_V3, conv_kernel_size=3, conv_act="gelu"),
    ),
    "deberta_v2_own_projections": (
        t.DebertaV2ForMaskedLM,
        t.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type="p2c"),
    ),
    "deberta_v2_absolute": (
        t.DebertaV2ForMaskedLM,
        t.DebertaV2Config(**SIZES, legacy=False, type_vocab_size=2),
    ),
    "deberta_v3": (t.DebertaV2ForMaskedLM, t.DebertaV2Config(**SIZES, **_V3)),
}


def random_model(
    name: str, *, dropout: bool = True, seed: int = 0, head=None, **changes
):
    """Returns a model whose every tensor matters, and whose attention is uneven.

    `head` is another class than that of the list.
    """
    model_class, config = MODELS[name]
    model_class = head or model_class
    config = type(config).from_dict(config.to_dict() | changes)
    if not dropout:
        off = {field: 0.0 for field in config.to_dict() if "dropout" in field}
        config = type(config).from_dict(config.to_dict() | off)
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, tensor in model.named_parameters():
            is_norm = "norm" in path.lower() and path.endswith("weight")
            # Queries and keys are larger, or all attention would be a mere mean.
            wide = any(w in path for w in ("query", "key", "q_", ".q", ".k", "in_proj"))
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise * (0.3 if wide else 0.15) + float(is_norm))
    return model


def random_batch(
    model, *, padded: bool, rows: int = 4, length: int = LENGTH
) -> dict[str, np.ndarray]:
    """Returns ids, mask and segments, padded on the side of the family."""
    config = model.config
    rng = np.random.default_rng(0)
    ids_BL = rng.integers(5, config.vocab_size, (rows, length))
    segments_BL = np.zeros_like(ids_BL)
    if getattr(config, "type_vocab_size", 0) > 1 or config.model_type == "xlnet":
        segments_BL[:, length // 2 :] = 1
    lengths_B = np.array([length, length - 11, 9, 27])[:rows]
    place_L = np.arange(length)
    if config.model_type == "xlnet":  # padding stands before the text
        place_L = place_L[::-1]
    mask_BL = place_L < lengths_B[:, None] if padded else np.ones_like(ids_BL, bool)
    ids_BL = np.where(mask_BL, ids_BL, config.pad_token_id)
    return {"ids": ids_BL, "mask": mask_BL, "segments": segments_BL}


def torch_inputs(model, batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the batch as a model of transformers takes it."""
    inputs = {
        "input_ids": torch.tensor(batch["ids"]),
        "attention_mask": torch.tensor(batch["mask"]).long(),
    }
    if batch["segments"].any():
        inputs["token_type_ids"] = torch.tensor(batch["segments"])
    return inputs


def random_params(config: EncoderConfig, *heads: str, generator=None) -> dict:
    """Returns parameters of ours, drawn by numpy: nothing has to be compiled."""
    return _drawn(leaf_shapes(config, heads, generator))


def random_task_params(config: EncoderConfig, head: TaskHead) -> dict:
    """Returns the same of a task's model."""
    return _drawn(task_shapes(config, head))


def _drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict:
    rng = np.random.default_rng(0)
    leaves = {
        path: rng.normal(float(path.endswith("scale")), 0.15, shape).astype(np.float32)
        for path, shape in shapes.items()
    }
    return tree_of(leaves)
