"""What comes next may be known before it is drawn: guesses are verified several at a time.

    guesses         what drafts have said, and what followed the longest run of it
    read_text       what an output has read, and is likely to say again
    session_guesses who says what of it in a turn, and what that makes of the next words
    shared_guesses  the same for all sessions of one salt that ask for it
    drafter         a smaller model that drafts for this one
    ahead           the steps that come next if a guess is right, computed in the same forward

A guess changes no token, right or wrong; it changes the time.
"""
