"""HTML as text: what is no markup is escaped, in one place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from secateur.report.markup import Markup, element, joined
from tests.report.pages import parsed

words = st.text().map(lambda text: text.replace("\r", " "))


@given(words, words)
def test_words_come_back_as_they_were(text: str, value: str) -> None:
    found = parsed(element("p", text, title=value)).all("p")[0]
    assert (found.text, found["title"], len(found.children) <= 1) == (text, value, True)


def test_markup_stays_and_words_do_not() -> None:
    assert joined(["<b>", Markup("<b>")]) == "&lt;b&gt;<b>"


def test_attributes_that_are_no_values() -> None:
    assert element("p", a=None, b=False, c=True, d_=0, e_f="") == '<p c d="0" e-f=""></p>'


def test_elements_without_content_are_closed() -> None:
    assert element("rect", x=1) == '<rect x="1"/>'
    assert element("circle", element("title", "t")) == "<circle><title>t</title></circle>"
