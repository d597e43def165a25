"""Input that may still change: a turn run early, taken back where it changes, and told at the commit.

    editable    the turn until it is committed: snapshots are followed, the run is taken back to what still holds
    taken       the steps of that run, by which two runs are compared
    diff        what two inputs have in common
    splicing    what stands behind an edit is taken over, moved to where it stands now
    facts       edits that change what is told rather than how; `fact_forms`, `fact_words`: what it knows of language
    history     the conversation before the input, where a snapshot tells it
    checking    turns that took something over are computed again, when nobody waits

Where nothing is taken over, a committed turn is by construction that of a session which was told the text at once.
"""
