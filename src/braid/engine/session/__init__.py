"""One session: its lanes, their queues and turns, and the rows that come of them.

    conversation   its verbs, and what each step takes and gives
    lanes, stage   what waits to be read and is about to be said, and the template text around it
    starts, stops  when an output begins, and where it ends
    policy, coming what the next rows are made of
    rowmaker       makes them; `record` tells of them
    ground         what they stand on in the cache; `preamble`, `shared_prefix` and `restore` bring it there

Nothing here knows tensors.
"""
