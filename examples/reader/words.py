"""What worlds are made of: attributes and kinds of things, sentences in which facts are told and asked, pieces of names."""

# Attributes: the noun, the kind of value, and sentences of its own beside the frames below (a statement, a question).
ATTRIBUTES = {
    "opening time": ("time", "{E} opens at {V}", "When does {E} open?"),
    "closing time": ("time", "{E} closes at {V}", "When does {E} close?"),
    "lunch break": ("time", "Lunch at {E} begins at {V}", "When does lunch at {E} begin?"),
    "manager": ("person", "{E} is run by {V}", "Who runs {E}?"),
    "master": ("person", "{V} is in command of {E}", "Who is in command of {E}?"),
    "trainer": ("person", "{E} is taught by {V}", "Who teaches {E}?"),
    "contact": ("person", "Questions about {E} go to {V}", "Whom do I ask about {E}?"),
    "operator": ("person", "{E} is looked after by {V}", "Who looks after {E}?"),
    "supplier": ("company", "{E} is supplied by {V}", "Who supplies {E}?"),
    "insurer": ("company", "{E} is insured with {V}", "With whom is {E} insured?"),
    "extension": ("extension", "Dial {V} to reach {E}", "Which number do I dial for {E}?"),
    "rest day": ("weekday", "{E} rests on {V}", "On which day does {E} rest?"),
    "cleaning day": ("weekday", "{E} is cleaned every {V}", "On which day is {E} cleaned?"),
    "delivery day": ("weekday", "{E} delivers every {V}", "On which day does {E} deliver?"),
    "meeting day": ("weekday", "{E} meets on {V}", "On which day does {E} meet?"),
    "inspection date": ("date", "{E} is inspected on {V}", "When is {E} inspected?"),
    "deadline": ("date", "Applications for {E} close on {V}", "When do applications for {E} close?"),
    "start date": ("date", "{E} starts on {V}", "When does {E} start?"),
    "year of building": ("year", "{E} was built in {V}", "In which year was {E} built?"),
    "first year": ("year", "{E} has been with us since {V}", "Since when has {E} been with us?"),
    "home port": ("place", "{E} is based at {V}", "Where is {E} based?"),
    "home town": ("place", "{E} comes from {V}", "Where does {E} come from?"),
    "venue": ("place", "{E} is held at {V}", "Where is {E} held?"),
    "capacity": ("seats", "{E} takes {V}", "How many does {E} take?"),
    "top speed": ("knots", "{E} does not go faster than {V}", "How fast does {E} go?"),
    "length": ("metres", "{E} measures {V} from end to end", "How long is {E}?"),
    "weight": ("tonnes", "{E} weighs {V}", "How much does {E} weigh?"),
    "crew size": ("people", "{E} sails with {V}", "With how many people does {E} sail?"),
    "group size": ("people", "{E} is for {V} at most", "For how many people is {E}?"),
    "fee": ("pounds", "{E} costs {V}", "How much does {E} cost?"),
    "deposit": ("pounds", "{E} asks for {V} in advance", "How much does {E} ask for in advance?"),
    "budget": ("pounds", "{E} may spend {V} a year", "How much may {E} spend a year?"),
    "duration": ("days", "{E} lasts {V}", "How long does {E} last?"),
    "notice period": ("days", "{E} can be cancelled within {V}", "Within what time can {E} be cancelled?"),
    "waiting time": ("weeks", "The wait for {E} is {V}", "How long is the wait for {E}?"),
    "warranty": ("months", "{E} is under warranty for {V}", "For how long is {E} under warranty?"),
    "service interval": ("hours", "{E} is serviced after {V}", "After what time is {E} serviced?"),
    "tank volume": ("litres", "{E} holds {V} of fuel", "How much fuel does {E} hold?"),
    "working pressure": ("bar", "{E} runs at {V}", "At what pressure does {E} run?"),
    "voltage": ("volts", "{E} needs {V}", "What voltage does {E} need?"),
    "call sign": ("code", "{E} answers to {V} on the radio", "What does {E} answer to on the radio?"),
    "door code": ("code", "{V} opens the door of {E}", "What opens the door of {E}?"),
    "serial number": ("code", "{E} bears the number {V}", "Which number does {E} bear?"),
    "form number": ("code", "Form {V} is used for {E}", "Which form is used for {E}?"),
    "customer number": ("code", "{E} knows us as {V}", "As what does {E} know us?"),
    "locker": ("code", "{E} keeps things in {V}", "Where does {E} keep things?"),
    "storage room": ("room", "{E} is kept in {V}", "Where is {E} kept?"),
    "room": ("room", "{E} is found in {V}", "Where is {E} found?"),
    "colour": ("colour", "{E} is painted {V}", "How is {E} painted?"),
    "badge": ("colour", "{E} wears {V}", "What does {E} wear?"),
    "password": ("word", "{E} is unlocked with the word {V}", "With which word is {E} unlocked?"),
    "grade": ("grade", "{E} is rated {V}", "How is {E} rated?"),
}

_HOUSE = "opening time, closing time, lunch break, manager, extension, rest day, cleaning day, inspection date, " \
    "door code, capacity, budget, insurer, year of building, password, room"
_VESSEL = "master, home port, capacity, top speed, length, weight, crew size, year of building, call sign, colour, " \
    "tank volume, insurer, inspection date, service interval, operator"
_MACHINE = "supplier, operator, serial number, voltage, working pressure, service interval, warranty, storage room, " \
    "weight, colour, fee, password, tank volume, inspection date, first year"
_SERVICE = "fee, deposit, duration, trainer, contact, deadline, start date, venue, form number, group size, " \
    "waiting time, notice period, meeting day, room, grade"
_PERSON = "extension, room, home town, first year, rest day, locker, badge, grade, lunch break, meeting day"
_COMPANY = "delivery day, customer number, contact, notice period, home town, extension, deposit, grade, first year"

KINDS = {
    **dict.fromkeys("office depot library workshop clinic canteen hall terminal".split(), _HOUSE.split(", ")),
    **dict.fromkeys("ferry tug barge launch".split(), _VESSEL.split(", ")),
    **dict.fromkeys("pump printer boiler generator crane scanner".split(), _MACHINE.split(", ")),
    **dict.fromkeys("course permit tour grant scheme club".split(), _SERVICE.split(", ")),
    "person": _PERSON.split(", "),
    "company": _COMPANY.split(", "),
}

# Frames in which any attribute `{a}` of a thing `{E}` can be told or asked for. `{an}` is the article of `{a}`.
STATEMENTS = [
    "The {a} of {E} is {V}",
    "{E} has {an} {a} of {V}",
    "At {E} the {a} is {V}",
    "{E}'s {a} is {V}",
    "For {E}, the {a} is {V}",
    "{V} is the {a} of {E}",
    "The {a} of {E} is now {V}",
    "We list the {a} of {E} as {V}",
    "{E} has {V} as its {a}",
    "The {a} for {E} remains {V}",
    "{E} comes with {an} {a} of {V}",
    "We have set the {a} of {E} to {V}",
    "Note that the {a} of {E} is {V}",
    "Everybody at {E} knows that the {a} is {V}",
    "When it comes to {E}, {V} is the {a}",
    "The {a} that was agreed for {E} is {V}",
    "The books show {V} as the {a} of {E}",
    "You will find that {E} has {V} for its {a}",
    "As for {E}, its {a} is {V}",
    "The list names {V} as {E}'s {a}",
    "The {a} that we keep for {E} is {V}",
    "{E} works with {an} {a} of {V}",
    "On the sheet of {E} the {a} reads {V}",
    "With {E} you get {an} {a} of {V}",
    "The {a} of {E} equals {V}",
    "Remember {V}, the {a} of {E}",
    "{E}, by contrast, has {an} {a} of {V}",
    "In our records the {a} of {E} appears as {V}",
    "From this week the {a} of {E} becomes {V}",
]
IMPLICIT = [
    "The {a} is {V}",
    "Its {a} is {V}",
    "{V} is the {a}",
    "The {a} is now {V}",
    "We list {V} as the {a}",
    "Note that the {a} is {V}",
    "Here {V} is the {a}",
    "The books show {V} as the {a}",
    "As for the {a}, it is {V}",
]
"""Statements whose thing is the document's."""
QUESTIONS = [
    "What is the {a} of {E}?",
    "What is {E}'s {a}?",
    "Tell me the {a} of {E}.",
    "{E}: what is the {a}?",
    "Please give the {a} of {E}.",
    "I am looking for the {a} of {E}.",
    "Do you know the {a} of {E}?",
    "For {E}, what is the {a}?",
    "Which {a} does {E} have?",
    "Can you tell me the {a} of {E}?",
    "Give me {E}'s {a}, please.",
    "Somebody asked for the {a} of {E}.",
    "I need to know the {a} of {E}.",
    "What {a} has {E}?",
    "What do the documents give as the {a} of {E}?",
    "The {a} of {E}, please.",
    "What would be the {a} of {E}?",
    "Find the {a} of {E}.",
    "Is there {an} {a} for {E}, and what is it?",
    "I forgot the {a} that was set for {E}.",
    "A visitor wants the {a} of {E}.",
    "Regarding {E}: which {a} applies?",
    "How do you state the {a} of {E}?",
    "Please look for {E} and say its {a}.",
    "Check the {a} of {E} for me.",
    "May I have the {a} of {E}?",
    "What is written as the {a} for {E}?",
]
HELD_STATEMENTS = ["In the case of {E}, the {a} stands at {V}", "The register gives {V} as the {a} of {E}"]
HELD_QUESTIONS = ["Could you look up the {a} of {E}?", "Remind me of the {a} that {E} has."]
OPENINGS = ["As of May, ", "Until further notice, ", "According to the board, ", "As agreed, ", "This year, "]
FILLERS = [
    "Please keep this page at hand.",
    "Ask a colleague when in doubt.",
    "Changes are announced on the notice board.",
    "Older versions of this page are void.",
    "Nothing here replaces common sense.",
    "The staff are glad to help.",
    "Visitors sign the book at the entrance.",
    "Keep the forms dry and in order.",
    "Report what is broken before you leave.",
    "New staff are shown around in their first week.",
    "Everybody reads this once a quarter.",
    "Send us a note if something is missing.",
]

HEADS = "Ald Bel Bor Bra Cal Car Cor Dal Dar Del Dor Dun El Fal Far Fen Fin Gal Gar Gol Gran Hal Har Hel Hol Is Jar Jor " \
    "Kal Kar Kel Kil Kor Lam Lan Lor Lun Mal Mar Mel Mor Mun Nar Nel Nor Ol Or Pal Pel Per Pol Quen Ral Ran Rel Ros " \
    "Sal Sar Sel Sol Stor Tal Tar Tel Tor Tul Ul Val Var Vel Vol Wal Wen Wil Yar Yor Zan Zel".split()
MIDDLES = "a e i o u an en in on un ar er or ra re ri ro la le li lo va ve vi na ne ni no da de di do ma me mi mo ta te ti to".split()
TAILS = "bra by bury cott dale den dra fax field ford gar ham hurst kin ley lin mere mond mouth nan ney ov rick ros sby sea set " \
    "sey shaw son stad sund tam ter thorpe ton tov ven vik ville wald well wick wold worth yard zen ka la mo na ra ru ta va".split()
COMPANIES = "Supplies Trading Partners Works Services Stores".split()
COLOURS = "red blue green yellow white black grey orange brown silver purple pink navy cream".split()
GRADES = "excellent good fair poor basic advanced senior junior gold bronze".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
AMOUNTS = {"seats": (12, 900), "knots": (5, 40), "metres": (4, 180), "tonnes": (2, 900), "people": (2, 60),
            "pounds": (3, 9000), "days": (2, 90), "weeks": (2, 40), "months": (3, 72), "hours": (4, 900),
            "litres": (20, 9000), "bar": (2, 60), "volts": (12, 900)}
