"""Names and things of the stories, and numbers in words."""

from __future__ import annotations

__all__ = ["NUMBER_WORDS", "SHE", "HE", "THINGS", "PLACES", "spell"]

SHE = (
    "Mia Ann Zoe Eva Ida Lucy Emma Sara Nina Olivia Ella Ruth Clara Maya Amina Priya Mei Rosa Lena Julia Alice Grace "
    "Hannah Fatima Leila Yuki Sofia Elena Anna Maria Sally Betty Jane Kate Linda Nora Paula Rita Tina Vera Wendy "
    "Carmen Diana Fiona Gina Helen Iris Joan Karen Laura"
).split()
HE = (
    "Tom Leo Max Sam Ben Paul Omar Ravi Liam Noah Jack Adam Hugo Carl Ivan Kofi Ahmed Luis Pedro Marco Peter John "
    "David Henry Oscar Felix Theo Amir Chen Kenji Bob Dan Eric Frank George Harry Jim Ken Mark Nick Oliver Phil Ron "
    "Steve Tim Victor Walter Alex Chris Tony"
).split()
THINGS = (
    "apples pens coins books shells cards eggs stones marbles stickers pencils balloons cookies candies oranges "
    "bananas stamps toys flowers roses tomatoes potatoes carrots lemons peaches plums pears cups plates spoons buttons "
    "beads ribbons crayons erasers notebooks photos tickets badges magnets blocks bricks tiles bottles cans boxes jars "
    "sandwiches muffins cupcakes pies cakes chairs lamps candles pillows blankets hats socks shirts scarves gloves "
    "shoes ducks chickens goats sheep fish birds rabbits puppies kittens seeds plants trees leaves acorns pebbles "
    "rocks feathers dollars points stars nuts grapes cherries strawberries melons onions peppers mushrooms olives "
    "postcards letters envelopes posters comics magazines puzzles games dolls kites bikes wheels nails screws ropes"
).split()
PLACES = "shop market park school library garden farm fair beach station museum kitchen".split()
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()


def spell(number: int) -> str:
    """The number in words, where it has one here.

    >>> spell(3), spell(45)
    ('three', '45')
    """
    return NUMBER_WORDS[number] if 0 <= number < len(NUMBER_WORDS) else str(number)
