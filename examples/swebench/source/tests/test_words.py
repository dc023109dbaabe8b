from wordtool import count, headline, shorten


def test_count():
    assert count("one two three") == 3


def test_headline():
    assert headline("a long day") == "A Long Day"


def test_shorten():
    assert shorten("abcdefghij", 6) == "abc..."


def test_shorten_leaves_short_text():
    assert shorten("abc", 6) == "abc"
