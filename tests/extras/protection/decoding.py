"""A protection at work on errors of one small tensor `t` (`tests.mitigation.plain`) and of what is stored beside it."""

from tests.mitigation.plain import TRIAL, errors_of, masks_of, words_of


def decoded(mitigation, model, masks, beside=()):
    """What it leaves of errors {word: mask}, with errors {unit: mask} of what it stores by that one's name, and its report."""
    stored = {name: errors_of(own) for name, own in dict(beside).items()}
    report = mitigation.decode(words_of(mitigation, model), errors_of(masks), stored, TRIAL)
    return masks_of(report.remaining), report
