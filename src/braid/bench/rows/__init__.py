"""`braid bench rows`: what a row costs, beside what the stock forward costs."""
