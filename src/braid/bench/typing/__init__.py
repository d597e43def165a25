"""`braid bench typing`: what reading and drafting ahead bring to somebody who types, and what they cost."""
