"""Masks are filled as a computation in PyTorch with the same weights fills them."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM, BertModel

from encoderjax import fill_mask
from encoderjax.data.tokenizers import make_tokenizer
from encoderjax.errors import UserError
from encoderjax.fill_mask import fill_masks, pair_probability
from encoderjax.interop.loading import load_model
from tests.small_corpus import documents
from tests.torch_models import VOCABULARY, random_bert, save_folder

TEXT = "I [MASK] you because you are [MASK]"
SPECIALS = 5
SEED = 113  # its weights fill the text differently in each order, the last mask first


class Reference:
    """The same work by transformers, one text and one pass at a time."""

    def __init__(self, folder, model):
        self.model = model
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> torch.Tensor:
        return torch.tensor([self.tokenizer(text)["input_ids"]])

    def probabilities(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns [L, V], 0 for what must not be predicted."""
        with torch.no_grad():
            logits = self.model(ids).prediction_logits[0]
        probabilities = torch.softmax(logits, -1)
        probabilities[:, :SPECIALS] = 0.0
        probabilities[:, len(VOCABULARY) :] = 0.0
        return probabilities

    def fill(self, text: str, order: str) -> tuple[list[int], list[float], list[int]]:
        """Returns the ids and probabilities of the masks, and the order taken."""
        ids = self.ids(text)
        masks = torch.nonzero(ids[0] == 4)[:, 0].tolist()
        filled, sequence = {}, []
        while len(filled) < len(masks):
            best = self.probabilities(ids).max(-1)
            waiting = [at for at in masks if at not in filled]
            if order == "left":
                waiting = waiting[:1]
            elif order == "surest":
                waiting = [max(waiting, key=lambda at: best.values[at])]
            for at in waiting:
                filled[at] = (int(best.indices[at]), float(best.values[at]))
                sequence.append(masks.index(at))
                ids[0, at] = filled[at][0]
        return (
            [filled[at][0] for at in masks],
            [filled[at][1] for at in masks],
            sequence,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(random_bert(seed=SEED), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def reference(folder):
    return Reference(folder, random_bert(seed=SEED))


@pytest.mark.parametrize("order", ["together", "left", "surest"])
def test_both_masks_are_filled_as_in_pytorch(loaded, reference, order):
    ids, chances, sequence = reference.fill(TEXT, order)
    (filled,) = fill_masks(loaded, [TEXT], order=order)
    assert [mask[0].id for mask in filled.masks] == ids
    assert [mask[0].token for mask in filled.masks] == [VOCABULARY[i] for i in ids]
    found = [mask[0].probability for mask in filled.masks]
    np.testing.assert_allclose(found, chances, atol=1e-5)
    assert list(filled.sequence) == sequence
    expected = reference.ids(TEXT)[0, 1:-1]
    expected[expected == 4] = torch.tensor(ids)
    assert filled.filled == reference.tokenizer.decode(expected)


@pytest.mark.parametrize("pads_left", [False, True])
def test_another_tokenizer_has_its_own_mask_and_padding(loaded, pads_left):
    tokenizer = make_tokenizer("unigram/xlm_roberta:60", lambda: documents(12))
    tokenizer.layout = dataclasses.replace(tokenizer.layout, pads_left=pads_left)
    model = dataclasses.replace(loaded, tokenizer=tokenizer)
    texts = ["The [MASK] sees the ship", "The <mask> sees the ship", "the war <mask>"]
    first, same, other = fill_masks(model, texts, top=3)
    assert first.masks == same.masks
    assert first.text == texts[0]
    assert first.filled == same.filled
    # The row that the model should have been given, padded to 32.
    encoder, params = model.with_heads("mlm")
    for text, filled in ((texts[1], same), (texts[2], other)):
        ids, _ = tokenizer.encode_with_specials(text)
        row = np.full((1, 32), tokenizer.vocabulary.pad_id)
        row[0, slice(-len(ids), None) if pads_left else slice(len(ids))] = ids
        real = row != tokenizer.vocabulary.pad_id
        out = encoder.apply({"params": params}, row, real, np.zeros_like(row))
        logits = np.asarray(out.logits)[row == tokenizer.vocabulary.mask_id][0]
        ordinary = tokenizer.vocabulary.ordinary_ids
        expected = ordinary[np.argsort(-logits[ordinary])[:3]]
        assert [c.id for c in filled.masks[0]] == expected.tolist()


def test_the_worked_example_tells_the_orders_apart(reference):
    ids = [reference.fill(TEXT, order)[0] for order in ("together", "left", "surest")]
    assert len({tuple(pair) for pair in ids}) == 3
    assert reference.fill(TEXT, "surest")[2] == [1, 0]


def test_candidates_are_the_likeliest_ordinary_tokens(loaded, reference):
    (filled,) = fill_masks(loaded, [TEXT], top=92)
    assert len(filled.masks) == 2
    for mask, at in zip(filled.masks, (2, 7), strict=True):
        chances_V = reference.probabilities(reference.ids(TEXT))[at].numpy()
        assert sorted(c.id for c in mask) == list(range(SPECIALS, len(VOCABULARY)))
        found = [candidate.probability for candidate in mask]
        assert found == sorted(found, reverse=True)
        np.testing.assert_allclose(found, [chances_V[c.id] for c in mask], atol=1e-5)


def test_many_texts_at_once_are_filled_as_one_by_one(loaded, reference):
    rng = np.random.default_rng(0)
    words = [token for token in VOCABULARY[SPECIALS:] if token.isalpha()]
    texts = []
    for length in rng.integers(2, 30, 40):
        chosen = rng.choice(words, length).tolist()
        chosen[rng.integers(length)] = "[MASK]"
        chosen[rng.integers(length)] = "[MASK]"
        texts.append(" ".join(chosen))
    for text, filled in zip(texts, fill_masks(loaded, texts), strict=True):
        assert filled.text == text
        ids, chances, _ = reference.fill(text, "together")
        assert [mask[0].id for mask in filled.masks] == ids
        found = [mask[0].probability for mask in filled.masks]
        np.testing.assert_allclose(found, chances, atol=1e-5)


def test_few_shapes_are_compiled(loaded):
    fill_mask._score_masks.clear_cache()
    fill_masks(loaded, [f"the [MASK] {'very ' * n}good" for n in range(20)])
    assert fill_mask._score_masks._cache_size() <= 2


def test_pair_probability_equals_pytorch(loaded, reference):
    pairs = [("it is the sun", "i love rain"), ("you are kind", "two cats"), ("a", "b")]
    expected = []
    for pair in pairs:
        inputs = reference.tokenizer(*pair, return_tensors="pt")
        with torch.no_grad():
            logits = reference.model(**inputs).seq_relationship_logits
        expected.append(float(torch.softmax(logits, -1)[0, 0]))
    np.testing.assert_allclose(pair_probability(loaded, pairs), expected, atol=1e-5)


def test_pairs_are_judged_by_the_head_there_is(loaded):
    heads = loaded.params["heads"]
    swapped = {"mlm": heads["mlm"], "sop": heads["nsp"]}
    other = dataclasses.replace(
        loaded, head_names=("mlm", "sop"), params=loaded.params | {"heads": swapped}
    )
    pairs = [("it is the sun", "i love rain")]
    assert pair_probability(other, pairs) == pair_probability(loaded, pairs)


# ---- the command ----


def test_json_is_one_object(folder, loaded, capsys):
    pair = ["--pair", "it is the sun", "i love rain"]
    fill_mask.main([f"--model={folder}", TEXT, "--top=3", "--json", *pair])
    result = json.loads(capsys.readouterr().out)
    (text,) = result["texts"]
    assert text["text"] == TEXT
    assert [len(mask) for mask in text["masks"]] == [3, 3]
    assert text["masks"][0][0].keys() == {"token", "id", "probability"}
    (judged,) = result["pairs"]
    assert judged["next"] + judged["random"] == pytest.approx(1.0)
    assert [judged["next"]] == pair_probability(loaded, [tuple(pair[1:])])


def test_file_holds_a_text_a_line(folder, tmp_path, capsys):
    file = tmp_path / "texts.txt"
    file.write_text("the [MASK]\n\nI [MASK] you\n")
    fill_mask.main([f"--model={folder}", f"--file={file}", "--order=surest"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "MASK" in line] == ["the [MASK]", "I [MASK] you"]
    assert sum("filled:" in line for line in lines) == 2


def test_pairs_are_named_not_numbered(folder, capsys):
    fill_mask.main([f"--model={folder}", "--pair", "it is", "the sun"])
    assert "next 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["I love you"], r"has no \[MASK\]"),
        ([""], "is empty"),
        (["--pair", "it is", " "], "is empty"),
        (["[MASK] " + "very " * 60], "the model takes 40"),
        ([TEXT, "--top=0"], "top=0"),
        ([TEXT, "--top=93"], "92 ordinary tokens"),
        ([TEXT, "--order=right"], "--order"),
        ([], "no text given"),
        (["--file=nowhere.txt"], "nowhere.txt"),
        ([TEXT, "--tops=3"], "did you mean '--top'"),
    ],
)
def test_what_cannot_be_filled_is_refused(folder, arguments, message):
    with pytest.raises(UserError, match=message):
        fill_mask.main([f"--model={folder}", *arguments])


def test_models_without_the_head_are_refused(tmp_path):
    save_folder(random_bert(BertModel), tmp_path / "base")
    with pytest.raises(UserError, match="has no head 'mlm'"):
        fill_mask.main([f"--model={tmp_path / 'base'}", TEXT])
    save_folder(random_bert(BertForMaskedLM), tmp_path / "masked")
    with pytest.raises(UserError, match="has no head 'nsp'"):
        fill_mask.main([f"--model={tmp_path / 'masked'}", "--pair", "a", "b"])
