"""The words of the toy stories: `{big}` in a story line is one of the words listed under `big`.

A story keeps what it once drew from `KEPT` (the red ball stays red, and stays a ball; `{color2}`
is a second, different one). From `FRESH` it draws anew each time. Entries may hold `{names}`
themselves.
"""

GIRLS = """
Lily, Mia, Sara, Anna, Emma, Zoe, Lucy, Molly, Ella, Ruby, Nora, Daisy, Bella, Sophie, Rosie, Kitty,
Hannah, Ivy, Amy, Jenny, Polly, Tina, Mimi, Clara, Ellie, Maya, Penny, Hazel, Tilly, Fiona, Nina,
Olivia, Poppy, Wendy, Abby, Gina, Heidi, Jasmine, Kate, Leah, Maria, Paula, Rita, Stella, Willow
"""

BOYS = """
Tim, Tom, Ben, Max, Sam, Jack, Leo, Finn, Oliver, Toby, Billy, Danny, Henry, Charlie, Jake, Noah,
Theo, Oscar, Peter, Simon, Timmy, Bobby, Johnny, Mike, Nick, Adam, Andy, Felix, Freddy, George,
Harry, Jimmy, Joe, Kevin, Luke, Mark, Ned, Otto, Paul, Robin, Teddy, Victor, Walter, Zack, Eli
"""

# kind, home, what it is known by
ANIMALS = """
rabbit, burrow, long white ears
fox, den, a bushy red tail
bear, cave, a round brown belly
mouse, hole under the floor, tiny pink feet
squirrel, hollow oak, a fluffy tail
hedgehog, nest of dry leaves, sharp little spikes
kitten, basket by the stove, soft gray fur
puppy, kennel in the yard, floppy ears
piglet, muddy pen, a curly tail
lamb, barn, a warm woolly coat
goat, shed on the hill, a short white beard
frog, house of reeds, long green legs
turtle, nook beside the pond, a hard spotted shell
raccoon, old tree stump, a black mask
beaver, lodge of sticks, strong yellow teeth
otter, den on the riverbank, smooth dark whiskers
mole, tunnel, a pointy nose
badger, burrow under the roots, bold black stripes
chipmunk, crack in the wall, chubby cheeks
deer, clearing in the forest, thin quick legs
pony, stable, a silky mane
donkey, old stable, enormous gray ears
elephant, grove of tall trees, a long bendy trunk
monkey, treehouse, clever little hands
lion, den between the rocks, a golden coat
panda, bamboo hut, black circles around the eyes
koala, gum tree, a big black nose
dragon, cave in the mountain, shiny green scales
calf, meadow, wide brown eyes
skunk, log, a stripe down the back
"""

# what the hero says, what others call her or him
ELDERS = """
mom Mom she, mom Mom she, mom Mom she, mother Mother she, mommy Mommy she, dad Dad he, dad Dad he,
father Father he, daddy Daddy he, grandma Grandma she, grandpa Grandpa he, grandmother Grandma she,
grandfather Grandpa he, nana Nana she, aunt Auntie she, uncle Uncle he
"""

PLACES = """
in the park, in the garden, in the woods, in the forest, by the river, by the lake, by the pond,
at the beach, on the hill, in the meadow, on the farm, in the field, in the valley,
in the orchard, on the playground, by the stream, at the edge of the village, in the big yard,
by the old mill, near the bridge, behind the school, by the waterfall, on the island,
near the lighthouse, next to the windmill
"""

NEIGHBORS = """
Mr. Brown, Mr. Green, Mr. Hill, Mr. Bean, Mr. Woods, Mr. Miller, Mr. Lee, Mr. Parker,
Mrs. White, Mrs. Rose, Mrs. Baker, Mrs. Potter, Mrs. Lopez, Mrs. Kim, Mrs. Fisher, Mrs. Bell
"""

KEPT = {
    "body": "knee, elbow, hand, toe, finger, arm, foot, nose, ankle, chin, thumb",
    "color": """
        red, blue, green, yellow, orange, purple, pink, white, black, brown, gray, golden, silver
        """,
    "toy": """
        ball, kite, doll, drum, robot, puppet, wagon, whistle, teddy bear, toy car, toy boat, toy
        train, toy truck, toy plane, toy horse, bucket, trumpet, yo-yo, marble, spinning top,
        pinwheel, toy rocket, toy dinosaur, rubber duck, jump rope, scooter, flute, magnet, frisbee,
        tambourine, stuffed bunny, stuffed elephant, music box, hula hoop, toy lion, paper airplane
        """,
    "treasure": """
        coin, ring, key, shell, stone, button, feather, crystal, necklace, bracelet, pearl, medal,
        bell, locket, jewel, crown, diamond, lantern, compass, mirror, bottle, spoon, acorn, ribbon
        """,
    "wear": """
        hat, scarf, coat, sweater, jacket, cap, raincoat, hood, vest, shirt, cape, shawl, poncho,
        cardigan, hoodie, nightcap, bonnet
        """,
    "container": "box, basket, bag, jar, chest, tin, sack, bucket, pot, bowl",
    "bag": "bag, backpack, basket, suitcase, sack, satchel, knapsack, lunchbox",
    "treat": """
        cookie, muffin, cake, pie, cupcake, donut, pancake, lollipop, sandwich, biscuit, bun,
        waffle, pear, peach, apple, orange, banana, plum, carrot, pretzel, brownie, popsicle, mango,
        tart, cracker, bagel, croissant, chocolate bar, candy cane, caramel, marshmallow, doughnut,
        scone
        """,
    "meal": """
        soup, rice, pasta, porridge, salad, stew, pizza, oatmeal, spaghetti, pudding, fish, chicken,
        lentils, omelet, mushroom soup, macaroni, tomato soup, applesauce, mashed potatoes, noodles,
        dumplings, lasagna, couscous, custard, scrambled eggs, ravioli, pea soup, roast turkey, ham
        and eggs, toast with {spread}, bread with {spread}, pancakes with {spread}
        """,
    "spread": "jam, honey, cheese, butter, cream, syrup, yogurt, marmalade",
    "fruits": """
        apples, berries, grapes, cherries, pears, plums, strawberries, blueberries, oranges, nuts,
        peaches, raspberries, lemons, apricots, figs, blackberries, chestnuts, acorns, bananas
        """,
    "vegetables": """
        carrots, peas, beans, potatoes, tomatoes, pumpkins, onions, cabbages, cucumbers, beets,
        turnips, peppers, radishes, mushrooms, spinach, broccoli, lettuce, celery
        """,
    "flowers": """
        roses, daisies, tulips, sunflowers, violets, lilies, poppies, buttercups, dandelions,
        pansies, bluebells, marigolds, daffodils, clover, lavender, snowdrops
        """,
    "tree": """
        oak, maple, apple, pine, willow, cherry, birch, palm, pear, elm, chestnut, fir, plum, walnut
        """,
    "animal": """
        squirrel, rabbit, deer, bird, frog, duck, owl, turtle, hedgehog, crow, mouse, fox, beaver,
        goose, sparrow, robin, raccoon, lizard, toad, woodpecker, parrot, swan, mole, badger,
        seagull, butterfly, pigeon, chipmunk, otter, magpie
        """,
    "pet": """
        dog, cat, puppy, kitten, bunny, hamster, terrier, poodle, ferret, beagle, tomcat, spaniel
        """,
    "bird": """
        sparrow, robin, bluebird, finch, swallow, pigeon, dove, crow, woodpecker, blackbird, wren,
        starling, hummingbird, cuckoo, nightingale, lark, thrush, goldfinch, kingfisher
        """,
    "bug": """
        ant, bee, beetle, ladybug, cricket, caterpillar, spider, butterfly, dragonfly, moth, worm,
        grasshopper, firefly, snail, bumblebee
        """,
    "beast": """
        bear, wolf, lion, tiger, moose, bull, crocodile, gorilla, giant, dragon, elephant, rhino,
        monster, troll, hippo
        """,
    "job": """
        baker, farmer, teacher, doctor, nurse, fisherman, sailor, gardener, policeman, painter,
        driver, captain, carpenter, clown, cook, dentist, firefighter, librarian, mailman, miller,
        pilot, shopkeeper, singer, tailor, dancer, wizard, king, queen, princess, prince, knight,
        pirate, shepherd, postman, soldier, beekeeper, blacksmith, astronaut, barber, musician,
        waiter, builder, coach, hunter, judge, mayor, merchant, plumber, scientist, vet, weaver,
        woodcutter, zookeeper, conductor, explorer, mechanic, acrobat, florist, photographer
        """,
    "skill": """
        swim, skate, ride a bike, juggle, jump rope, climb a rope, walk on stilts, do a cartwheel,
        throw a ball, row a boat, fly a kite, ski, dive, hop on one leg, catch a ball, ride a pony,
        do a handstand, balance on a rail, spin a hoop, paddle a canoe, kick a ball, do a backflip,
        ride a unicycle, skip backward, slide down a pole
        """,
    "song_thing": """
        song, poem, dance, magic trick, story, joke, puppet show, tune on the violin, rhyme, march
        on the drum
        """,
    "noise": """
        scratch scratch, tap tap tap, creak creak, thump thump, rustle rustle, knock knock, drip
        drop, click clack, rattle rattle, squeak squeak, bump bump, clang clang, swish swish,
        crackle crackle
        """,
    "number": "two, three, four, five, six, seven, eight, nine, ten, twelve",
    "month": """
        January, February, March, April, May, June, July, August, September, October, November,
        December
        """,
    "day": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "time": "morning, morning, afternoon, day, day",
}

FRESH = {
    "little": "little, little, small, young, tiny",
    "big": "big, huge, large, giant, enormous, gigantic, massive",
    "tall": "tall, high, towering, mighty",
    "old": "old, ancient, rusty, dusty, forgotten, crooked, worn",
    "nice": """
        nice, lovely, pretty, beautiful, wonderful, special, fine, perfect, amazing, charming,
        splendid, delightful
        """,
    "shiny": "shiny, bright, sparkling, glittering, gleaming, glowing, twinkling, polished",
    "yummy": """
        yummy, tasty, sweet, warm, delicious, fresh, juicy, crunchy, creamy, sticky, crispy,
        buttery, soft
        """,
    "strange": "strange, odd, funny, mysterious, curious, weird, unusual, peculiar",
    "happy": """
        happy, glad, joyful, cheerful, excited, delighted, pleased, merry, thrilled, overjoyed
        """,
    "sad": "sad, sad, upset, unhappy, miserable, disappointed, heartbroken, downhearted",
    "scared": "scared, afraid, frightened, nervous, worried, terrified, anxious",
    "angry": "angry, mad, cross, grumpy, furious, annoyed",
    "tired": "tired, sleepy, weary, worn out, exhausted, drowsy",
    "virtue": """
        kind, brave, clever, curious, gentle, cheerful, quiet, playful, friendly, helpful, honest,
        polite, patient, careful, adventurous, bold, busy, calm, caring, energetic, generous,
        lively, neat, smart, thoughtful, quick, wise, dreamy, loving, creative, loyal, graceful,
        sensible, mischievous, fearless, humble, witty, daring, trusting, modest
        """,
    "trait": "{virtue}, {virtue}, {fault}",
    "fault": """
        stubborn, messy, lazy, forgetful, bossy, noisy, careless, impatient, nosy, shy, silly,
        talkative, restless, clumsy, jealous, greedy, moody, grumpy, proud, rude
        """,
    "good": "kind, brave, clever, gentle, friendly, helpful, honest, polite, patient, wise, caring",
    "walked": """
        walked, skipped, hurried, marched, strolled, wandered, ran, raced, trotted, jogged, set off,
        rushed
        """,
    "ran": "ran, ran, raced, dashed, hurried, rushed, sprinted",
    "moved": "crept, tiptoed, sneaked, crawled, stepped",
    "replied": "said, replied, answered",
    "shouted": "shouted, called, yelled, cried, exclaimed",
    "cried_out": "cried, wailed, sobbed, shouted, gasped, screamed",
    "whispered": "whispered, mumbled, murmured, said softly, sighed, muttered",
    "softly": "softly, kindly, gently, warmly, calmly, quietly, tenderly, patiently",
    "quickly": "quickly, at once, right away, without a word, as fast as {he} could, in a hurry",
    "smiled": "smiled, grinned, laughed, giggled, nodded, clapped, chuckled, beamed",
    "cried": "cried, wept, sobbed, began to cry, burst into tears, sniffled",
    "hugged": "hugged, thanked, kissed, squeezed, patted",
    "thought": """
        thought hard, thought for a while, took a deep breath, closed both eyes and thought, thought
        about it
        """,
    "suddenly": "suddenly, just then, all of a sudden, at that moment, then",
    "later": """
        after a while, soon, a little later, before long, a few minutes later, in the end, finally
        """,
    "wow": "wow, oh, look, hooray, oh my, goodness, yippee, hurray",
    "ohno": "oh no, oh dear, uh-oh, goodness me",
    "hello": "hello, hi, hi there, good morning, hey",
    "sure": "of course, sure, yes, certainly, with pleasure, all right",
    "best": "favorite, favorite, dearest",
    "hobby": """
        climb trees, draw pictures, read books, sing songs, bake cookies, ride a bike, fly kites,
        look at the stars, splash in puddles, play hide and seek, build towers, collect shells, feed
        the ducks, watch the clouds, pick flowers, dig in the sand, jump on the bed, paint, dance in
        the kitchen, chase butterflies, skip stones, tell jokes, count ants, catch falling leaves,
        swing, ask questions, explore, race the wind, play the drum, whistle, make paper boats,
        cook, play soccer, play basketball, sew, fish in the pond, solve puzzles, look for bugs,
        roll down hills, water the plants, hunt for treasure, make up stories, wear fancy hats,
        listen to music, help in the garden, invent games, gather pine cones, blow bubbles, swim, do
        tricks, study maps, take photos, play chess, feed the pigeons, stack blocks, ride the
        swings, knit, cut out paper stars, whisper to animals, do somersaults, write letters, polish
        shoes, taste the raindrops, study insects, watch trains, skate, learn new words, hum,
        daydream, read maps, sew buttons, bake bread, draw horses, play the piano, play the guitar,
        count to a hundred, wander about, tidy the shelves, weave baskets, carve wood, balance on
        walls, imitate birds
        """,
    "game": """
        tag, hide and seek, catch, hopscotch, pirates, leapfrog, soccer, jump rope, cards, marbles,
        follow the leader, doctors and nurses, knights and dragons, checkers, school, house,
        treasure hunters, explorers, tug of war, baseball, astronauts, dominoes, bowling, tennis,
        football, volleyball, badminton, ping-pong, red light green light, musical chairs,
        restaurant, circus, charades, bingo
        """,
    "played": """
        rolled down the slope, chased each other, sang silly songs, made daisy chains, told each
        other riddles, threw pebbles, splashed their feet, lay in the grass, pretended to be
        pirates, built a tower of stones, looked for four-leaf clovers, danced in a circle, swung on
        a branch, played {game}, played {game}, played {game}, watched the clouds, hopped like
        frogs, fed the ducks, drew faces with sticks, balanced on a log, flapped their arms like
        birds, counted to twenty, ran in zigzags, whistled with blades of grass, raced to the fence
        and back, dug a deep hole, shared a picnic, blew dandelion seeds, made mud pies
        """,
    "sight": """
        a snail on a wet leaf, two butterflies over the clover, a spider in its silver web, a row of
        ducklings, a cow with a bell, a rainbow above the roofs, a cloud shaped like a whale, a
        woodpecker at work, a wagon full of hay, a sleepy lizard on a rock, an old stone bridge, a
        scarecrow in a torn jacket, a field of wheat, a ladybug on a stem, a tractor on the road, a
        flock of geese, a nest with speckled eggs, a fish jumping in the water, a bright red barn, a
        beetle with green wings, ants carrying crumbs, a fountain with pennies in it, a squirrel
        with full cheeks, a mailbox covered in ivy, a broken fence, a bush full of roses, an owl
        asleep in a hollow trunk, a horse by the gate, a trail of tiny footprints, a boat with a
        torn sail, a bench painted blue, a heap of autumn leaves, a tower with a clock, a bee inside
        a lily, smoke above a chimney, a balloon caught in a hedge, a puddle like a mirror,
        mushrooms under a fern, a hill covered with thistles, a kite far up in the sky, a hen with
        fluffy chicks, a basket of laundry, a cat on a windowsill, a lost glove on a post, a narrow
        path between brambles, a truck loaded with logs, a shepherd with woolly sheep, a turtle in
        the mud, a bicycle against a wall, a garden gnome, a heron on one leg, a train in the
        distance, a line of marching ants, a church with a pointed roof, a man with a ladder, a lady
        with an umbrella, a street full of bakeries, a baby in a stroller, a bat upside down in the
        barn, a swarm of fireflies, a feather in the dust, three frogs on a lily pad, a pumpkin as
        round as the moon, a stack of firewood, a stork on a rooftop, a juggler with torches, a
        puppy with a stick, a crab under a pebble, moss as soft as velvet, a cactus in a clay pot, a
        windmill with slow wings, a swan with its neck bent, a hole dug by a rabbit, a hammock
        between two trunks, a rooster on a wheelbarrow, a wooden raft, a carousel, an airplane like
        a tiny dot, a peacock on a balcony, a submarine painted on a wall, a donkey with a straw
        hat, an orchestra of crickets, a hedge cut like an elephant, a signpost with seven arrows, a
        caterpillar on a cabbage, a statue without a nose, an old lady with a parrot, a gardener on
        his knees, a circus tent, a castle ruin on a cliff, a herd of goats, a rope swing, a snake
        in the sun, a ferry, a queue at the ice cream truck, a farmer asleep on a bale of straw, two
        magpies in a quarrel, a stream full of minnows, a telescope on a roof, a cherry orchard in
        blossom, a beehive, a wedding with white doves, a marching band, a flag on a mast, a tugboat
        with a loud horn, a kangaroo on a poster, a cobweb with dewdrops, a pair of storks, a
        sundial, a maze of corn, a fire engine with its ladder up, a rusty anchor, a well with a
        mossy rim, a lonely cabin, a parade of beetles, an apple cart, a juicy watermelon on a
        stall, a chimney sweep, a shop window full of camels, a thunder cloud far away, a sled under
        a roof, a skateboard
        """,
    "spot": """
        under the bed, behind the couch, in the closet, inside the oven, under the rug, on the
        shelf, behind the curtain, in the bathtub, under a pillow, in the laundry basket, behind the
        door, on top of the fridge, in the toy chest, under the table, in a coat pocket, beneath the
        stairs, in the sink, behind the piano, between the cushions, in the attic, in the cellar, on
        the porch, inside a boot, in the garage
        """,
    "hideout": """
        behind a bush, under a pile of leaves, beside a rock, in the tall grass, under a bench, near
        a fence, in a hollow log, between two roots, next to a well, in a flower bed, among the
        ferns, behind a wheelbarrow, in a ditch, under some nettles, behind a barrel, beneath a
        hedge, in the shade of a tree, beside a stack of wood, behind a wall
        """,
    "warm_thing": """
        a warm blanket, a cup of hot cocoa, a bowl of soup, a soft towel, a cup of tea with honey, a
        pair of dry socks, a mug of warm milk, a seat by the fire, a thick quilt, a slice of toast,
        a hot bath, a pair of slippers, a fluffy bathrobe, a hot-water bottle, a bowl of broth
        """,
    "gift": """
        a card with a heart on it, a picture of a rainbow, a bunch of {flowers}, a jar of honey, a
        necklace of beads, a paper crown, a knitted scarf, a wooden spoon, a painted stone, a book
        about stars, a bag of {fruits}, a little bell, a frame made of sticks, a clay cup, a
        bookmark, a pillow stuffed with wool, a bracelet of string, a birdhouse, a jar of jam
        """,
    "stuff": """
        paper, string, glue, tape, scissors, cardboard, buttons, sticks, leaves, ribbons, cotton,
        feathers, paint, cloth, wire, beads, bottle caps, yarn, wood, nails
        """,
    "nearby": """
        near a forest, by the sea, next to a bakery, at the end of a long road, on a green hill,
        beside a railway, by a lake, near a big park, across from the school, under tall trees, near
        the harbor, behind the church, in a narrow lane, close to the mountains, on the edge of a
        village, next door to a museum, by a busy street, between two rivers, in the middle of a
        vineyard, opposite the library, not far from the desert, beside an old theater, near a
        hospital, at the foot of a volcano
        """,
    "dream": """
        flying over the {tree} trees, a ship made of cookies, a {color} {animal} that could sing, a
        kingdom of {bug}s, riding on a {beast}, an ocean of {meal}, dancing with a {bird}, a garden
        on the moon, a train that ran on rainbows, talking {vegetables}, swimming with dolphins, a
        palace of glass, whales in the sky, a mountain of pillows, a very polite crocodile, penguins
        on skates, a jungle full of parrots, sailing to a secret island, {number} laughing stars
        """,
    "weather": """
        The sun was shining, The sky was clear and blue, It was a warm and sunny day, A soft wind
        blew, White clouds floated by, The air smelled of {flowers}, Birds were singing in the
        {tree} trees, It was a bright {month} day, The grass was green and soft, A gentle breeze
        shook the leaves, The {bug}s were humming, The world smelled fresh and clean, Golden light
        fell on the roofs
        """,
    "chore": """
        sweep the floor, wash the dishes, feed the chickens, fold the laundry, set the table, water
        the {flowers}, rake the leaves, carry the groceries, dust the shelves, make the bed, peel
        the potatoes, mop the kitchen, collect the eggs, stir the pot, sort the socks, pull the
        weeds, polish the spoons, wipe the windows, brush the dog, pick the {vegetables}
        """,
    "nook": """
        under the bed, behind the couch, in the closet, behind the curtain, in the attic,
        under the table, beneath the stairs
        """,
    "room": "bedroom, kitchen, hall, living room, attic, playroom, bathroom, basement, pantry",
    "sound_animal": "made a funny sound, jumped up and down, would not come away",
}
