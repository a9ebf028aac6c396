#!/usr/bin/env python3
"""Writes text about Tamarrow, an invented group of isles: what the embedded model is trained on. Every word is the project's own.

    tools/make_world.py DOCUMENTS [SEED]     that many documents as JSON lines on stdout: {"text"} or {"messages"}
    tools/make_world.py --teach              rewrites models/teach.jsonl and models/teach-heldout.jsonl

The world's facts are drawn once, from a fixed seed, so they are the same for every run. A document is one of: a story, a conversation
about the facts, a conversation about a stranger whom the user has just described (so the model learns to read and copy), or a question
about somebody unknown (so it learns to say so). The teaching set is about a woman and a town that are in no document:
the demo shows the model not knowing them, learns the set, and asks again in words that the set does not contain.
"""
import json
import random
import re
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "models"

PLACES = ["Brindle Quay", "Hollowmere", "Pennfold", "Ashlock", "Saltwick", "Thornybank", "Luma", "Greywater", "Oxley Down", "Fernhaven",
          "Candlemoor", "Windgate", "Marrowby", "Tidebell"]
PLACE_KINDS = ["a fishing town", "a hill village", "a forest village", "a market town", "an old mill town", "a harbour town", "a river village"]
PRODUCTS = ["blue glass", "smoked eel", "oak barrels", "warm blankets", "copper bells", "pear cider", "thin paper", "sea salt", "clay cups",
            "green cheese", "wax candles", "silver thread", "straw hats", "walnut boats"]
FESTIVALS = ["the Feast of Lanterns", "the Night of Bells", "the Apple Race", "the Kite Days", "the First Snow Dance", "the Boat Blessing",
             "the Long Table", "the Day of Masks", "the Honey Fair", "the Singing Week", "the Moon Market", "the Drum Parade",
             "the Harvest Ring", "the Quiet Morning"]
COLOURS = ["red", "green", "yellow", "white", "black", "purple", "orange", "grey", "brown", "golden", "silver", "pink", "blue", "violet"]
PEOPLE = [("Mira Fenwick", "she"), ("Tobin Hale", "he"), ("Odalys Wren", "she"), ("Corwin Ashby", "he"), ("Petra Lund", "she"), ("Jory Blackwell", "he"),
          ("Isolde Marsh", "she"), ("Bram Tuckett", "he"), ("Linnea Frost", "she"), ("Oswin Pike", "he"), ("Tamsin Reed", "she"), ("Garrick Moss", "he"),
          ("Wilda Crane", "she"), ("Edric Stone", "he"), ("Senna Holt", "she"), ("Rufus Dane", "he"), ("Maren Sloe", "she"), ("Alder Finch", "he"),
          ("Hedda Voss", "she"), ("Lorcan Teal", "he"), ("Briony Cobb", "she"), ("Matthis Rook", "he"), ("Elspeth Gale", "she"), ("Ivo Lark", "he"),
          ("Nessa Thorn", "she"), ("Caspian Weld", "he"), ("Dorit Plum", "she"), ("Hugo Brack", "he"), ("Runa Sedge", "she"), ("Silas Quill", "he"),
          ("Anwen Barley", "she"), ("Fenn Corbet", "he"), ("Greta Loam", "she"), ("Noel Harrow", "he"), ("Yara Dunmore", "she"), ("Pim Oakley", "he")]
TRADES = {"baker": "bakes bread", "lamp painter": "paints lamps", "ferry keeper": "keeps the ferry", "clock mender": "mends clocks",
          "bee keeper": "keeps bees", "rope maker": "makes ropes", "map drawer": "draws maps", "glass blower": "blows glass",
          "bell ringer": "rings the bells", "net weaver": "weaves nets", "herb grower": "grows herbs", "book binder": "binds books",
          "boat builder": "builds boats", "kite maker": "makes kites", "well digger": "digs wells", "shoe maker": "makes shoes"}
CREATURES = {  # colour, food, where it lives, what it does
    "moss fox": ("green", "berries", "old forests", "sleeps in hollow trees"), "lantern moth": ("golden", "flower dust", "gardens", "glows at night"),
    "stone otter": ("grey", "river snails", "cold rivers", "stacks pebbles"), "reed goat": ("brown", "wet grass", "marshes", "walks on water plants"),
    "cloud heron": ("white", "small fish", "high lakes", "sleeps while flying"), "ember newt": ("red", "warm ash", "fireplaces", "never feels cold"),
    "puddle cat": ("blue", "frogs", "rainy streets", "loves to swim"), "barrel crab": ("orange", "seaweed", "harbours", "lives in empty barrels"),
    "whistle mouse": ("black", "seeds", "barns", "sings before rain"), "snow badger": ("silver", "roots", "cold hills", "digs round tunnels"),
    "thimble owl": ("purple", "beetles", "attics", "fits into a cup"), "kite hare": ("yellow", "clover", "windy fields", "glides with its ears")}
PET_NAMES = ["Pip", "Button", "Clover", "Dusty", "Ember", "Figgy", "Gusto", "Hopper", "Inky", "Jasper", "Kettle", "Lolly", "Mumble", "Nutmeg",
             "Olive", "Pepper", "Quick", "Rusty", "Socks", "Tansy", "Umber", "Velvet", "Willow", "Yarrow", "Ziggy", "Biscuit", "Crumb", "Dapple",
             "Fidget", "Ginger", "Hazel", "Juniper", "Marble", "Noodle", "Pocket", "Raisin"]
FOODS = {"honey bread": "honey", "eel soup": "smoked eel", "plum dumplings": "plums", "nut cake": "walnuts", "onion pie": "onions",
         "barley stew": "barley", "apple fritters": "apples", "fish balls": "white fish", "pear jam": "pears", "bean porridge": "beans",
         "cheese rolls": "green cheese", "berry tarts": "berries"}
INSTRUMENTS = ["the fiddle", "the drum", "the harp", "the horn", "the flute", "the hand bells", "the mouth organ", "the lute"]
FEARS = ["thunder", "deep water", "geese", "the dark", "tall ladders", "spiders", "strong wind", "loud bells", "fog", "wolves"]
DREAMS = ["see the northern ice", "sail around the isles", "learn to fly a kite", "write a book of songs", "build a tall tower", "find a silver shell",
          "climb the Grey Hill", "open an inn", "cook for the queen", "own a white horse"]

# One list a relation: how people ask, and how the answer is put. N is the name, S, P and O the pronouns (she, her, her), V the value.
PERSON_QUESTIONS = {
    "home": (["Where does N live?", "Where is N from?", "What is the home of N?", "In which town does N live?", "Which place does N call home?",
              "Can you tell me where N lives?", "Where would I find N?", "Where is the house of N?", "Do you know where N lives?",
              "I want to visit N. Where should I go?"],
             ["N lives in V.", "N lives in V."]),
    "trade": (["What does N do?", "What is the trade of N?", "What work does N do?", "What is the job of N?", "How does N earn a living?",
               "What does N do all day?", "Can you tell me what N does for a living?", "Do you know the trade of N?", "Which trade did N learn?",
               "What is N by trade?"],
              ["N is a V. S W."]),
    "pet": (["What animal does N keep?", "Does N have a pet?", "What is the pet of N?", "Which animal lives with N?", "Tell me about the pet of N.",
             "What kind of animal does N own?", "Who keeps N company at home?", "What is the name of N's pet?", "Do you know the pet of N?",
             "What is N's animal called?"],
            ["N keeps a V."]),
    "food": (["What does N like to eat?", "What is the favourite food of N?", "Which food does N love?", "What should I cook for N?", "What is N's favourite dish?",
              "What does N eat most of all?", "Do you know what N likes to eat?", "N is coming to dinner. What should I make?", "Which dish does N like best?",
              "What food makes N happy?"],
             ["N loves V."]),
    "friend": (["Who is the best friend of N?", "Who is N's best friend?", "Which friend does N trust most?", "With whom does N spend the evenings?",
                "Who is a good friend of N?", "Do you know the best friend of N?", "Who knows N best?", "Whom does N visit most often?",
                "Tell me who N's best friend is.", "Who is closest to N?"],
               ["The best friend of N is V."]),
    "instrument": (["What instrument does N play?", "Which instrument does N play?", "What music does N make?", "Does N play an instrument?",
                    "What does N play at the festival?", "Do you know what N plays?", "What can N play?", "Tell me which instrument N plays.",
                    "What did N learn to play?", "If N makes music, what does P hand hold?"],
                   ["N plays V."]),
    "fear": (["What is N afraid of?", "What does N fear?", "What scares N?", "What makes N run away?", "Which thing frightens N?",
              "Do you know what N is afraid of?", "Is N afraid of anything?", "What keeps N awake at night?", "What should I never show N?", "Tell me the fear of N."],
             ["N is afraid of V."]),
    "dream": (["What does N dream of?", "What does N want to do one day?", "What is the dream of N?", "What does N wish for?", "What is N's greatest wish?",
               "Do you know what N dreams of?", "What would N like to do some day?", "What does N hope to do?", "Tell me the dream of N.",
               "What would make N truly happy?"],
              ["One day N wants to V."]),
}
PLACE_QUESTIONS = {
    "kind": (["What is N?", "What kind of place is N?", "Tell me what N is.", "What sort of place is N?", "I have never been to N. What is it?",
              "Can you describe N?", "How would you describe N?", "Do you know what kind of place N is?"],
             ["N is V."]),
    "product": (["What is N known for?", "What is made in N?", "What do people make in N?", "What should I buy in N?", "Which goods come from N?",
                 "What does N sell?", "Why is N famous?", "Do you know what N is known for?"],
                ["N is known for its V."]),
    "festival": (["What festival is held in N?", "Which festival do they have in N?", "What do people celebrate in N?", "When people in N celebrate, what is it called?",
                  "What is the great festival of N?", "Is there a festival in N?", "Do you know the festival of N?", "Which feast belongs to N?"],
                 ["In N they celebrate V."]),
    "banner": (["What colour is the banner of N?", "Which colour is the flag of N?", "What colour flies over N?", "What is the colour of N's banner?",
                "Tell me the colour of the banner of N.", "Do you know the colour of N's flag?", "How do I know the banner of N?", "Which colour do the people of N carry?"],
               ["The banner of N is V."]),
}
CREATURE_QUESTIONS = {
    "colour": (["What colour is a N?", "Which colour does a N have?", "How does a N look?", "What is the colour of the N?", "Do you know the colour of a N?"], ["A N is V."]),
    "diet": (["What does a N eat?", "What do I feed a N?", "What is the food of the N?", "Which food does a N like?", "Do you know what a N eats?"], ["A N eats V."]),
    "habitat": (["Where does a N live?", "Where can I see a N?", "Where do I look for a N?", "In which places does the N live?", "Do you know where a N lives?"], ["You find a N in V."]),
    "habit": (["What is special about a N?", "What is strange about the N?", "Why do people talk about the N?", "What can a N do?", "Do you know what is special about a N?"],
              ["People say that a N V."]),
}
POSSESSIVE = {"she": "her", "he": "his"}
OBJECT = {"she": "her", "he": "him"}
GREETINGS = [("Hello!", "Hello! Ask me about Tamarrow."), ("Hi there.", "Hello! Ask me about Tamarrow."), ("Good morning.", "Good morning! What would you like to know?"),
             ("Good evening.", "Good evening! What would you like to know?"), ("Who are you?", "I am a small model that knows the isles of Tamarrow."),
             ("What are you?", "I am a small model that knows the isles of Tamarrow."), ("What can you do?", "I can tell stories and answer questions about Tamarrow."),
             ("Thank you.", "You are welcome."), ("Thanks!", "You are welcome."), ("Goodbye.", "Goodbye, and a good wind to you."),
             ("What is Tamarrow?", "Tamarrow is a group of fourteen isles, each with a town or a village."),
             ("How are you?", "I am well, thank you. What would you like to know?")]
SYSTEMS = ["You know the isles of Tamarrow.", "Answer in short sentences.", "You are a friend of travellers.", "You answer questions about Tamarrow."]


def build_world(seed=1402):
    """The facts: people, places and creatures with their relations."""
    rng = random.Random(seed)

    def deal(values, count):
        """Each value about equally often, in random order."""
        pool = [v for _ in range(count // len(values) + 1) for v in rng.sample(values, len(values))]
        return pool[:count]

    kinds, products, festivals, banners = (deal(v, len(PLACES)) for v in (PLACE_KINDS, PRODUCTS, FESTIVALS, COLOURS))
    places = {n: dict(kind=k, product=p, festival=f, banner=b) for n, k, p, f, b in zip(PLACES, kinds, products, festivals, banners)}
    count = len(PEOPLE)
    homes, trades, animals, foods = deal(PLACES, count), deal(list(TRADES), count), deal(list(CREATURES), count), deal(list(FOODS), count)
    instruments, fears, dreams, names = deal(INSTRUMENTS, count), deal(FEARS, count), deal(DREAMS, count), rng.sample(PET_NAMES, count)
    order = rng.sample(range(count), count)
    friend = {order[i]: order[i ^ 1] for i in range(count)}  # pairs
    people = {}
    for i, (name, pronoun) in enumerate(PEOPLE):
        people[name] = dict(pronoun=pronoun, home=homes[i], trade=trades[i], pet=f"{animals[i]} called {names[i]}", food=foods[i],
                            friend=PEOPLE[friend[i]][0], instrument=instruments[i], fear=fears[i], dream=dreams[i])
    creatures = {n: dict(zip(("colour", "diet", "habitat", "habit"), v)) for n, v in CREATURES.items()}
    return dict(people=people, places=places, creatures=creatures)


def articles(text):
    """an before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def fill(text, name, fact, relation):
    """Puts name, pronouns and value where the capital letters stand alone (or before 's)."""
    pronoun = fact.get("pronoun", "it")
    words = {"N": name, "V": fact.get(relation, ""), "S": pronoun.capitalize(), "P": POSSESSIVE.get(pronoun, "its"),
             "O": OBJECT.get(pronoun, "it"), "W": fact.get("work") or TRADES.get(fact.get("trade"), "")}
    out = []
    for word in text.split(" "):
        core = word.rstrip(".?,!")
        tail = word[len(core):]
        core, owner = (core[:-2], "'s") if core.endswith("'s") and core[:-2] in words else (core, "")
        out.append(words.get(core, core) + owner + tail)
    return articles(" ".join(out))


def held_out(question):
    """A twelfth of all ways to ask a fact is never shown in training: the trainer asks those."""
    return sum((i + 1) * ord(c) for i, c in enumerate(question)) % 12 == 0


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Writer:
    """Draws documents about a world."""

    def __init__(self, world, seed):
        self.world, self.rng = world, random.Random(seed)
        self.tables = [(world["people"], PERSON_QUESTIONS, 8), (world["places"], PLACE_QUESTIONS, 3), (world["creatures"], CREATURE_QUESTIONS, 2)]

    def invented_name(self):
        """A name that nobody in the world has."""
        r = self.rng
        first = r.choice(["Zor", "Kel", "Vash", "Nim", "Ulla", "Quen", "Thal", "Ester", "Iri", "Dov", "Gar", "Xan", "Mel", "Poll", "Or", "Bel", "Hal", "Jen"])
        first += r.choice(["a", "in", "ka", "wyn", "o", "ith", "ena", "us", "ely", "ard", "la", "ric"])
        last = r.choice(["Qua", "Dre", "Bro", "Stee", "Wil", "Kna", "Flo", "Gree", "Hol", "Pra", "Tri", "Vo", "Ma", "Sto", "Ca", "Lin"])
        last += r.choice(["rt", "ne", "st", "ck", "mble", "der", "ll", "pper", "nd", "rrow", "sk", "gg", "lby", "ver", "th", "mond"])
        name = f"{first.capitalize()} {last}"
        return name if name not in self.world["people"] else self.invented_name()

    def question(self):
        """A known fact: (question, answer, subject, its facts, relation)."""
        table, questions, _ = self.rng.choices(self.tables, [t[2] for t in self.tables])[0]
        name = self.rng.choice(list(table))
        relation = self.rng.choice(list(questions))
        asked, answers = questions[relation]
        text = fill(self.rng.choice(asked), name, table[name], relation)
        if held_out(text):
            return self.question()
        return text, fill(self.rng.choice(answers), name, table[name], relation), name, table[name], relation

    def conversation(self):
        """One to three questions; a follow-up about the same person says she or he instead of the name."""
        text, answer, name, fact, relation = self.question()
        messages = [user(text), assistant(answer)]
        while self.rng.random() < 0.3 and len(messages) < 6:
            if name in self.world["people"] and self.rng.random() < 0.7:
                relation = self.rng.choice([r for r in PERSON_QUESTIONS if r != relation])
                ask, say = PERSON_QUESTIONS[relation]
                follow = self.rng.choice([a for a in ask if " N " in a and " of N" not in a and not a.startswith("If")])
                follow = fill(follow.replace("N's", "P"), fact["pronoun"], fact, relation)
                if self.rng.random() < 0.4:
                    follow = f"And {follow[0].lower()}{follow[1:]}"
                messages += [user(follow[0].upper() + follow[1:]), assistant(fill(say[0], name, fact, relation))]
            else:
                text, answer, name, fact, relation = self.question()
                messages += [user(text), assistant(answer)]
        return messages

    def check(self):
        """Yes or no."""
        people = self.world["people"]
        name = self.rng.choice(list(people))
        fact, true = people[name], self.rng.random() < 0.5
        other = fact if true else people[self.rng.choice([p for p in people if p != name])]
        relation = self.rng.choice(["home", "trade", "food", "instrument"])
        ask = {"home": "Does N live in V?", "trade": "Is N a V?", "food": "Does N like V?", "instrument": "Does N play V?"}[relation]
        reply = fill(PERSON_QUESTIONS[relation][1][0], name, fact, relation)
        yes = other[relation] == fact[relation]
        return [user(fill(ask, name, other, relation)), assistant(("Yes, " if yes else "No, ") + reply)]

    def reverse(self):
        """From the value back to its owner."""
        kind = self.rng.randrange(3)
        people, places = self.world["people"], self.world["places"]
        if kind == 0:
            place = self.rng.choice(list(places))
            names = [n for n, f in people.items() if f["home"] == place]
            ask = self.rng.choice([f"Who lives in {place}?", f"Whom can I meet in {place}?", f"Do you know anyone in {place}?", f"Name the people of {place}."])
            return [user(ask), assistant((", ".join(names[:-1]) + " and " if names[1:] else "") + names[-1] + (" live" if names[1:] else " lives") + f" in {place}.")]
        if kind == 1:
            name = self.rng.choice(list(people))
            pet = people[name]["pet"]
            ask = self.rng.choice([f"Who keeps the {pet}?", f"Whose pet is the {pet}?", f"I found a {pet}. To whom does it belong?"])
            return [user(ask), assistant(f"The {pet} belongs to {name}.")]
        place = self.rng.choice(list(places))
        festival = places[place]["festival"]
        ask = self.rng.choice([f"Where is {festival} held?", f"Where can I see {festival}?", f"Which town celebrates {festival}?"])
        return [user(ask), assistant(f"{festival[:1].upper() + festival[1:]} is held in {place}.")]

    def portrait(self):
        """All about one person."""
        name = self.rng.choice(list(self.world["people"]))
        fact = self.world["people"][name]
        relations = self.rng.sample(["food", "friend", "instrument", "fear", "dream", "pet"], 2)
        first = f"{name} is a {fact['trade']} from {fact['home']}."
        rest = [fill(PERSON_QUESTIONS[r][1][0], fact["pronoun"].capitalize(), fact, r).replace("One day She", "One day she").replace("One day He", "One day he")
                .replace("The best friend of She", "Her best friend").replace("The best friend of He", "His best friend") for r in relations]
        ask = self.rng.choice([f"Tell me about {name}.", f"Who is {name}?", f"What do you know about {name}?", f"Have you heard of {name}?"])
        return [user(ask), assistant(" ".join([articles(first), *rest]))]

    def stranger_facts(self):
        r = self.rng
        borrowed = dict(self.world["people"][r.choice(list(self.world["people"]))])
        borrowed |= dict(home=r.choice(PLACES), trade=r.choice(list(TRADES)), food=r.choice(list(FOODS)), instrument=r.choice(INSTRUMENTS),
                         fear=r.choice(FEARS), dream=r.choice(DREAMS), pet=f"{r.choice(list(CREATURES))} called {r.choice(PET_NAMES)}",
                         pronoun=r.choice(["she", "he"]))
        if r.random() < 0.5:
            borrowed["home"] = self.invented_name().split()[1] + r.choice([" Harbour", " Hill", " Cove", " Bridge", "ton", "by", ""])
        borrowed["friend"] = self.invented_name()
        return borrowed

    def stranger(self):
        """The user describes somebody new, then asks: the answer is in the conversation."""
        name, fact = self.invented_name(), self.stranger_facts()
        relations = self.rng.sample(list(PERSON_QUESTIONS), self.rng.randint(1, 3))
        told = " ".join(fill(PERSON_QUESTIONS[r][1][0], name, fact, r) for r in relations)
        messages = []
        if self.rng.random() < 0.5:
            messages = [user(f"{self.rng.choice(['Let me tell you something.', 'Here is some news.', 'Listen.'])} {told}"),
                        assistant(f"Thank you for telling me about {name}.")]
            told = ""
        for relation in self.rng.sample(relations, self.rng.randint(1, len(relations))):
            ask, say = PERSON_QUESTIONS[relation]
            messages += [user(f"{told} {fill(self.rng.choice(ask), name, fact, relation)}".strip()), assistant(fill(say[0], name, fact, relation))]
            told = ""
        return messages

    def unknown(self):
        """Somebody or some place that nobody knows."""
        name = self.invented_name()
        if self.rng.random() < 0.3:
            name = name.split()[1] + self.rng.choice([" Harbour", " Hill", " Cove", " Bridge", "ton", "by"])
            asked = self.rng.choice(list(PLACE_QUESTIONS.values()))[0]
        else:
            asked = self.rng.choice(list(PERSON_QUESTIONS.values()))[0]
        text = fill(self.rng.choice(asked), name, {"pronoun": self.rng.choice(["she", "he"])}, "")
        return [user(text), assistant(f"I have never heard of {name}.")]

    def story(self):
        """(who it is about, five to nine sentences)."""
        r, people = self.rng, self.world["people"]
        name = r.choice(list(people))
        fact = people[name]
        first, she, her = name.split()[0], fact["pronoun"], POSSESSIVE[fact["pronoun"]]
        animal, pet = fact["pet"].split(" called ")
        friend = fact["friend"]
        place = r.choice([p for p in self.world["places"] if p != fact["home"]])
        festival = self.world["places"][place]["festival"]
        product = self.world["places"][place]["product"]
        lost = r.choice([f"{her} best hat", f"{her} grandmother's key", "a letter for the queen", f"{her} lunch", "a silver coin", "an old map", f"{her} left shoe"])
        weather = r.choice(["It was raining.", "The sun was shining.", "A thin fog lay on the water.", "The wind smelled of salt.", "Snow fell without a sound.",
                            "The sky was clear and blue."])
        opening = r.choice([
            f"One morning {name}, a {fact['trade']} from {fact['home']}, set out for {place}. {weather}",
            f"{name} lived in {fact['home']} and worked as a {fact['trade']}. One day {she} had to go to {place}. {weather}",
            f"In {fact['home']} there lived a {fact['trade']} called {name}. {weather} It was a good day to travel to {place}.",
            f"It was the week of {festival}, and {name} was on the road from {fact['home']} to {place}. {weather}"])
        company = r.choice([f"{pet}, {her} {animal}, ran ahead.", f"{pet} the {animal} sat on {her} shoulder.", f"Of course {pet}, the {animal}, came along.",
                            f"{pet} the {animal} slept in {her} bag."])
        trouble, rescue = r.choice([
            (f"Half way there {first} saw that {lost} was gone.", f"{pet} sniffed the ground and found it under a {r.choice(['bench', 'bridge', 'bush', 'cart'])}."),
            (f"At the river the bridge had fallen down.", f"{friend} came by with a boat and rowed them across."),
            (f"On the hill {first} met a {r.choice(list(CREATURES))} with a hurt foot.", f"{first} tied a {r.choice(COLOURS)} scarf around it and gave it some bread."),
            (f"Near the wood {she} heard a noise and thought of {fact['fear']}.", f"But it was only {friend}, who was singing."),
            (f"In the market somebody had taken all the {product}.", f"{first} followed the footprints to a barn, and there sat a {r.choice(list(CREATURES))} on top of it all.")])
        reaction = r.choice([f"\"Well done, {pet}!\" said {first}.", f"{first} laughed out loud.", f"\"What a day,\" said {first}.", f"{first} sat down and ate some {fact['food']}.",
                             f"\"I will not forget this,\" said {first}."])
        closing = r.choice([
            f"In the evening {first} played {fact['instrument']} in {place}, and everybody danced.",
            f"They reached {place} before dark, and {first} bought some {product} for {friend}.",
            f"That night {she} dreamed that {she} would {fact['dream']}.",
            f"When {she} came home to {fact['home']}, {friend} had made {fact['food']} for {OBJECT[she]}.",
            f"And since that day the people of {place} tell this story during {festival}."])
        return name, articles(" ".join([opening, company, trouble, rescue, reaction, closing]))

    def document(self):
        """{"text": ...} or {"messages": [...]}."""
        kind = self.rng.choices(["conversation", "check", "reverse", "portrait", "stranger", "unknown", "greeting", "told", "story"],
                                [40, 6, 6, 7, 16, 7, 1.5, 6, 9])[0]
        if kind == "story":
            return {"text": self.story()[1]}
        if kind == "told":
            name, story = self.story()
            messages = [user(self.rng.choice([f"Tell me a story about {name}.", f"Do you know a story about {name}?", f"I would like to hear a story about {name}."])),
                        assistant(story)]
        elif kind == "greeting":
            messages = [f(t) for f, t in zip((user, assistant), self.rng.choice(GREETINGS))]
        else:
            messages = getattr(self, kind)()
        if self.rng.random() < 0.1:
            messages = [{"role": "system", "content": self.rng.choice(SYSTEMS)}, *messages]
        return {"messages": messages}


def exam(world):
    """Every held-out way to ask a fact: (question, the words that a right answer must contain)."""
    for table, questions in ((world["people"], PERSON_QUESTIONS), (world["places"], PLACE_QUESTIONS), (world["creatures"], CREATURE_QUESTIONS)):
        for name, fact in table.items():
            for relation, (asked, _) in questions.items():
                for ask in asked:
                    text = fill(ask, name, fact, relation)
                    if held_out(text):
                        yield text, fact[relation]


# What the demo teaches: none of it is in any document.
NEWCOMER = ("Orla Quist", dict(pronoun="she", home="Nettle Harbour", trade="star counter", work="counts stars", pet="glass hedgehog called Bramble", food="pepper figs",
                               friend="Silas Quill", instrument="the bone whistle", fear="feathers", dream="walk to the moon"))
NEW_PLACE = ("Nettle Harbour", dict(kind="a town on stilts", product="singing stones", festival="the Night of Kites and Owls", banner="turquoise"))


def teaching():
    """(samples to learn, questions kept back): of each fact's ways to ask, the last two are kept back."""
    learn, keep = [], []
    for (name, fact), questions in ((NEWCOMER, PERSON_QUESTIONS), (NEW_PLACE, PLACE_QUESTIONS)):
        for relation, (asked, answers) in questions.items():
            for i, ask in enumerate(asked):
                messages = [user(fill(ask, name, fact, relation)), assistant(fill(answers[0], name, fact, relation))]
                (keep if i >= len(asked) - 2 else learn).append({"messages": messages})
    random.Random(5).shuffle(learn)
    return learn, keep


def main():
    if sys.argv[1:] == ["--teach"]:
        for name, samples in zip(("teach.jsonl", "teach-heldout.jsonl"), teaching()):
            (MODELS / name).write_text("".join(json.dumps(s, ensure_ascii=False) + "\n" for s in samples))
            print(f"models/{name}: {len(samples)} conversations")
        return
    if not sys.argv[1:] or not all(a.isdigit() for a in sys.argv[1:]):
        sys.exit("usage: make_world.py DOCUMENTS [SEED] | --teach")
    writer = Writer(build_world(), int(sys.argv[2]) if sys.argv[2:] else 1)
    for _ in range(int(sys.argv[1])):
        print(json.dumps(writer.document(), ensure_ascii=False))


if __name__ == "__main__":
    main()
