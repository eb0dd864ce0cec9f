"""The languages of corpora, as a model numbers them.

Shapes: M corpora.
"""

from collections.abc import Sequence

import numpy as np

from encoderjax.data.corpus import Corpus
from encoderjax.data.forms import FORMS, forms_that
from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError


def check_translations(corpora: Sequence[Corpus], data: DataConfig) -> None:
    """Refuses rows of a line and its translation where no corpus has any."""
    translated = any(len(corpus.languages) == 2 for corpus in corpora)
    if FORMS[data.form].parallel and not translated:
        raise UserError(
            f"data.form={data.form!r}: data.corpus={data.corpus} has no translations; "
            "prepare some with --text_key=en,fr --sentences=fields"
        )


def numbered_languages(
    corpora: Sequence[Corpus], languages: Sequence[str], data: DataConfig
) -> np.ndarray | None:
    """Returns the numbers of the languages of corpora, int32 [M, 2].

    They are those of the two fields of translations; of one language, the same twice.
    None where the model tells no languages apart.

    Args:
      corpora: whose rows are read.
      languages: of the model, in their order.
      data: how the rows are cut.
    """
    if not languages:
        return None
    return np.asarray([_numbers(c, languages, data) for c in corpora], np.int32)


def _numbers(
    corpus: Corpus, languages: Sequence[str], data: DataConfig
) -> tuple[int, int]:
    found = corpus.languages
    if not found:
        raise UserError(
            f"model.languages={tuple(languages)}: corpus {corpus.folder} does not say "
            "its language; prepare it with --language_key, translations with "
            "--text_key=en,fr --sentences=fields"
        )
    if len(found) == 2 and not FORMS[data.form].parallel:
        able = forms_that(lambda form: form.parallel)
        raise UserError(
            f"data.form={data.form!r} would mix the languages of corpus "
            f"{corpus.folder}, which has translations; set it to {able}"
        )
    for name in found:
        if name not in languages:
            raise UserError(
                f"model.languages={tuple(languages)} lacks {name!r}, the language of "
                f"corpus {corpus.folder}; add it"
            )
    return languages.index(found[0]), languages.index(found[-1])
