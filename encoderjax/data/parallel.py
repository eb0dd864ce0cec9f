"""Rows of a line and its translation (XLM's translation language model).

Each text keeps its own separators where the layout has two between them, and positions
begin anew in the second. Text of one language, which a mixture may have beside it, is
cut into rows of whole sentences.

Shapes: B rows of a batch, L length, R rows, S sentences, M members of a mixture.
"""

import numpy as np

from encoderjax.data.assembly import Batch
from encoderjax.data.random import KeyedDraws, hash_words
from encoderjax.data.records import ROW, Cutting
from encoderjax.data.segment_pairs import truncated_lengths
from encoderjax.data.sentence_blocks import cut_sentences
from encoderjax.data.stream import StreamSentences
from encoderjax.data.tokenizers import Layout


def cut_parallel(cutting: Cutting, shard: int, number: int) -> np.ndarray:
    """Returns the rows of one shard as [R] of `ROW`, for pass `number`.

    Which of the two comes first is drawn for each pair and pass; a row whose first text
    lies behind the other is turned round. What is too long loses the ends of its longer
    text.
    """
    if not cutting.translated:
        return cut_sentences(cutting, shard, within_documents=False)
    settings = cutting.settings
    sentences = StreamSentences.of(cutting.split, shard, settings.separators)
    documents_S = sentences.documents_S
    # One of the two may have had no tokens.
    paired_S = documents_S[1:] == documents_S[:-1]
    first_R = np.flatnonzero(paired_S)
    document_R = documents_S[first_R]

    rows_R = np.zeros(len(first_R), ROW)
    order_R2 = first_R[:, None] + np.arange(2)
    draw = KeyedDraws(hash_words(settings.seed, number, document_R))
    turned_R = draw.coin("order")[: len(first_R)]
    order_R2[turned_R] = order_R2[turned_R, ::-1]
    starts_R2, ends_R2 = sentences.starts_S[order_R2], sentences.ends_S[order_R2]
    rows_R["start"] = starts_R2
    rows_R["length"] = truncated_lengths(ends_R2 - starts_R2, cutting.tokens(2))
    return rows_R


def second_columns(
    records_B: np.ndarray, layout: Layout, mask_BL: np.ndarray
) -> np.ndarray:
    """Returns where the second text of each row begins, [B]; L where there is none.

    Of two separators between the texts, the second one belongs to the second.
    """
    lengths_B2 = records_B["length"].astype(np.int64)
    own = max(0, len(layout.between) - 1)
    second_B = len(layout.before) + lengths_B2[:, 0] + len(layout.between) - own
    second_B += mask_BL.argmax(axis=1)  # where the row begins
    return np.where(lengths_B2[:, 1] > 0, second_B, mask_BL.shape[1])


def own_positions(second_B: np.ndarray, mask_BL: np.ndarray) -> np.ndarray:
    """Returns positions [B, L] that begin anew in the second text; 0 on padding."""
    columns_L = np.arange(mask_BL.shape[1])
    second_B1 = second_B[:, None]
    first_B1 = mask_BL.argmax(axis=1)[:, None]
    begin_BL = np.where(columns_L < second_B1, first_B1, second_B1)
    return ((columns_L - begin_BL) * mask_BL).astype(np.int32)


def languages_of(
    records_B: np.ndarray, second_B: np.ndarray, languages_B2: np.ndarray, length: int
) -> np.ndarray:
    """Returns the number of the language of each place, int32 [B, L].

    Args:
      records_B: the rows.
      second_B: where the second text begins.
      languages_B2: of the first and of the second field of a row's corpus, which are
        turned round with the row.
      length: of the rows.
    """
    start_B2 = records_B["start"]
    turned_B = (records_B["length"][:, 1] > 0) & (start_B2[:, 0] > start_B2[:, 1])
    languages_B2 = np.where(turned_B[:, None], languages_B2[:, ::-1], languages_B2)
    second_BL = np.arange(length) >= second_B[:, None]
    found_BL = np.where(second_BL, languages_B2[:, 1:], languages_B2[:, :1])
    return found_BL.astype(np.int32)


def told_apart(
    batch: Batch,
    pieces: tuple[np.ndarray, np.ndarray],
    layout: Layout,
    languages_B2: np.ndarray | None,
    *,
    parallel: bool,
) -> Batch:
    """Returns what is known of the texts of rows: `positions` and `languages`.

    Args:
      batch: with its mask.
      pieces: the records, and the row of each. Rows of several pieces have one
        language.
      layout: of the special tokens.
      languages_B2: of each row's corpus; None where the model tells none apart.
      parallel: whether positions begin anew, and languages change, in a second text.
    """
    mask_BL = batch["mask"]
    found: Batch = {}
    if not parallel:
        if languages_B2 is not None:
            one_BL = np.broadcast_to(languages_B2[:, :1], mask_BL.shape)
            found["languages"] = one_BL.astype(np.int32)
        return found
    records_B, _ = pieces
    second_B = second_columns(records_B, layout, mask_BL)
    found["positions"] = own_positions(second_B, mask_BL)
    if languages_B2 is not None:
        found["languages"] = languages_of(
            records_B, second_B, languages_B2, mask_BL.shape[1]
        )
    return found
