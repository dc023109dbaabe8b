"""Three functions about words."""


def count(text):
    """Return how many words a text has."""
    return len(text.split(" "))


def headline(text):
    """Return the text with each word's first letter in upper case."""
    return " ".join(word.capitalize() for word in text.split())


def shorten(text, limit):
    """Return the text with at most `limit` characters; what is cut ends with three points."""
    if len(text) < limit:
        return text
    return text[: limit - 3] + "..."
