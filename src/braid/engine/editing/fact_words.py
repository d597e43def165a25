"""Words that carry facts, and words that carry none: the tables of `facts`. English only.

A contrast is a line of rivals, `old | young`: one taken for another changes what is said. Words with no bar between
them mean the same, as far as an answer is concerned.
"""

from __future__ import annotations

import re

__all__ = ["CONTRASTS", "EMPTY", "NEGATIONS", "RESTRICTIONS", "SYNONYMS", "stem"]

_SUFFIXES = ("ing", "est", "ed", "er", "es", "ly", "s", "d", "e")
_IRREGULAR_FORMS = """
go goes went gone
do does did done
speak spoke spoken
say said
tell told
buy bought
sell sold
give gave given
take took taken
make made
come came
see saw seen
get got gotten
find found
think thought
know knew known
write wrote written
begin began begun
run ran
eat ate eaten
drink drank drunk
drive drove driven
fly flew flown
leave left
send sent
keep kept
bring brought
teach taught
meet met
win won
lose lost
pay paid
build built
grow grew grown
fall fell fallen
hold held
stand stood
understand understood
sleep slept
feel felt
hear heard
choose chose chosen
break broke broken
man men
woman women
child children
foot feet
tooth teeth
mouse mice
person people
be is are was were been am
"""
_BASES = {form: line.split()[0] for line in _IRREGULAR_FORMS.strip().splitlines() for form in line.split()}


def stem(word: str) -> str:
    """A word without its ending, so that its forms are alike; too much is cut, but from all forms alike."""
    word = _BASES.get(word, word)
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


_CONTRASTS = """
more | less fewer
most | least
increase rise grow raise | decrease fall drop shrink lower reduce
high tall higher | low lower short
before prior | after following
early earlier | late later
old older | young younger | new newer
large big huge larger bigger | small little tiny smaller
long longer | short shorter
wide | narrow
thick | thin
heavy heavier | light lighter
fast quick faster | slow slower
hot | warm | cool | cold
good fine great | bad poor
better | worse
best | worst
cheap cheaper | expensive dear
rich | poor
strong | weak
hard difficult | easy simple
loud noisy | quiet silent
wet | dry
full | empty
clean | dirty
safe | dangerous
happy glad | sad
true right correct | false wrong incorrect
left | right
north northern | south southern | east eastern | west western
up | down
upstairs | downstairs
above over | below under beneath
inside | outside
indoors | outdoors
in | out
on | off
with | without
to | from
for | against
near close | far
front | back
top | bottom
first | last final | next
begin start | end stop finish
open | close closed shut
lock | unlock
push | pull
buy bought purchase purchased | sell sold
win won | lose lost
give gave | take took
come came arrive | go went leave left
send sent | receive
lend lent | borrow
accept | refuse reject
allow permit | forbid ban
love like enjoy | hate dislike
remember | forget forgot
add | remove subtract
plus | minus
pass passed | fail failed
alive | dead
male | female
public | private
maximum | minimum
import | export
teach taught | learn
ask | answer
cause | prevent
must shall | should | may can could might
always | usually normally generally mostly | often frequently | sometimes occasionally | rarely seldom | never
all every each everyone everybody everything | most | many much | some several someone somebody something | few little
any | every
enough sufficient | few little insufficient
and | or
he him his himself | she her hers herself
i me my mine we us our ours | you your yours | they them their theirs
we us our ours | i me my mine
father dad | mother mum mom
brother | sister
son | daughter
husband | wife
uncle | aunt
man men | woman women
boy | girl
king | queen
today | tomorrow | yesterday | tonight
morning | noon | afternoon | evening | night | midnight
day days daily | week weeks weekly | month months monthly | year years yearly annual | hour hours | minute minutes
spring | summer | autumn fall | winter
am | pm
past ago | future
last previous | next coming | this
red | blue | green | yellow | black | white | brown | grey gray | orange | purple | pink
breakfast | lunch | dinner supper
gold | silver | bronze
cat | dog | horse | cow | sheep | bird | fish
coffee | tea | beer | wine | water | milk | juice
car | bus | train | plane | bicycle bike | ship boat
email | letter | poem | story | essay | report
"""

_SYNONYMS = """
happy glad pleased
fine good nice great lovely
tasty delicious
big large huge great
small little tiny
quick fast rapid swift
begin start commence
end finish stop
talk speak chat
say tell mention state
buy purchase
get obtain receive
help assist aid support
show display present
explain describe clarify outline
make create produce build
write compose draft
fix repair mend
make cook prepare
use utilise utilize employ
need require
want wish
think believe feel
look see view watch
find discover
choose pick select
try attempt
change alter modify edit
put place set
keep hold retain
give provide offer supply
ask request
answer reply response respond
live reside dwell
go travel
come arrive
leave depart
child children kid
man guy
men guys
house home
shop store
film movie
picture image photo
car automobile
job work task
road street
town city
trip journey
idea plan
text passage
word term
part section piece
problem issue trouble difficulty
mistake error fault
sum total
kind type sort
summary overview
summarise summarize condense shorten
short brief concise
simple easy plain
hard difficult tough
clever smart intelligent
strange odd weird
pretty beautiful lovely
tired exhausted sleepy
sick ill unwell
rich wealthy
poor needy
old ancient aged
quiet calm
angry cross
afraid scared frightened
almost nearly
about approximately roughly around circa
often frequently
usually normally generally mostly typically
sometimes occasionally
perhaps maybe possibly
but however yet though although
so therefore thus hence
because since as
also too
very really quite extremely highly truly
only just merely
enough sufficient
such like
while whereas
until till
above over
below under beneath
near close nearby
colour color
favourite favorite
centre center
theatre theater
grey gray
organise organize
realise realize
travelling traveling
main chief major key principal
important significant
different various
whole entire complete
right correct
wrong incorrect
example instance
reason cause
result outcome
method approach way
step stage
rule guideline
goal aim purpose
doctor physician
teacher instructor
worker employee
boss manager
customer client
clothes clothing
food meal
holiday vacation
autumn fall
flat apartment
lift elevator
lorry truck
rubbish garbage trash
"""
"""What may stand for each other in some sentence. Not all of them do in all: this is what the rules let pass."""

_NEGATIONS = "not no never none nobody nothing nowhere neither nor without hardly barely scarcely"
NEGATIONS = frozenset(_NEGATIONS.split())
RESTRICTIONS = frozenset({"only", "except", "unless", "solely"})

_EMPTY = """
a an the this that these those there here it its it's he she they we i you me him her them us my your his our their
is are was were be been being am do does did done have has had will would shall should can could may might must
to of in on at by for from with as into about than then so too very and or but if because while when which who whom
whose what where how why please thanks thank kindly hello hi hey dear sorry well just really actually basically
quite rather simply um uh er oh ok okay yes also however perhaps maybe like want know tell let get need advance good
morning help could wonder possible some any one ones thing much way kind sort that's all still even again
indeed anyway literally honestly definitely certainly of course now
"""
EMPTY = frozenset(map(stem, _EMPTY.split()))
"""Stems of words that may come and go and leave the facts as they are."""

_SAME = [same.split() for table in (_SYNONYMS, _CONTRASTS) for same in re.split(r" \| |\n", table.strip())]
SYNONYMS: dict[str, set[int]] = {}
"""A word's stem → the numbers of the meanings it may have."""
for _place, _words in enumerate(_SAME):
    for _word in _words:
        SYNONYMS.setdefault(stem(_word), set()).add(_place)

CONTRASTS: tuple[dict[str, int], ...] = tuple(
    {stem(word): place for place, rival in enumerate(line.split(" | ")) for word in rival.split()}
    for line in _CONTRASTS.strip().splitlines()
)
"""Each table: a word's stem → which of the rivals it is."""
