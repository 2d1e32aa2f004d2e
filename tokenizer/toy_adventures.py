"""The plots of the toy stories out in the world; `toy_plots.py` says how they are written."""

ADVENTURES = """
== stuck in a tree
flyer = kite, balloon, paper airplane, toy plane, frisbee, ball, cap
- {hero} got a new {color} {flyer}. {He} took it {to_place} to try it out. {Scene}
- One windy {time}, {hero} and {friend} played with a {color} {flyer} {in_place}.

- It flew higher and higher. {hero} laughed and ran after it.
- "Look how high it goes!" {shouted} {hero}.

- {Suddenly} the wind took it, and it got stuck in a {tall} {tree} tree.
- But a strong wind carried it up into the branches of a {tall} {tree} tree, and there it stayed.

/
- {He} jumped, but {he} could not reach it. {He} shook the tree, but only [leaves|nuts|twigs] fell
  down.
- {He} threw {his} shoe at it. Now the shoe was stuck in the tree, too!

- "I will never get it back," said {hero}, and {he} {cried}.
- {hero} sat down on a root. {He} was {sad}.

- A [squirrel|raccoon|monkey|chipmunk] came down the trunk. "Why are you so {sad}?" it asked. {hero}
  pointed at the {flyer}.
- Then {neighbor} came by with a [wheelbarrow|basket|dog|bag of apples]. "What is the matter?" {he4}
  asked.
- {Friend} came by. "What happened?" {he2} asked. {hero} pointed at the {flyer}.

/
- "Maybe we should not pull, but push," said {hero} suddenly. {He} found a very long stick, and
  together they pushed.
- {hero} {thought}. "If you lift me up, I can reach that branch," {he} said. It was not easy, but it
  worked.

- The {flyer} came loose and floated down, right into {his} arms. It had only a small scratch.
- At last the {flyer} fell down. It landed {hideout}, and it was not even broken.

/
- "Thank you for helping me!" said {hero}. {He} shared {his} {treat} with everyone. {Bedtime}
- After that, {hero} only played with it where there were no trees. {Supper}

== lost on the way
- One {time}, {hero} went {to_place} with {elder}. "Stay close to me," said {elder}.
- {hero} and {elder} went to the market. There were so many people! "Hold my hand," {elder} said.

- But {hero} saw {sight} and stopped to look. Then {he} saw {sight}. When {he} turned around,
  {elder} was gone.
- But {hero} saw a {color} {bug} and ran after it. {He} ran to the left, and {he} ran to the right.
  Then {he} did not know where {he} was.

/
- "{mom}! {mom}!" {he} {shouted}. Nobody answered. Everything looked strange and much too big.
- {hero} looked around. All the faces were strange. {His} heart beat fast, and tears ran down {his}
  cheeks.

- Then {he} remembered what {elder} always said: "If you are lost, stay where you are, and I will
  find you."
- "Do not run around when you are lost," {elder} had told {him} once. "Wait, or ask somebody for
  help."

- So {he} sat down {hideout} and waited. To be brave, {he} sang a song and counted {bug}s.
- So {he} went to a {job} with a kind face. "I am lost," {he} said. "Can you help me, please?"

/
- {Suddenly} {he} heard {his} name. It was {elder}! {He3} {ran} over and lifted {him} up.
- {Later} {he} saw a {color2} {wear} that {he} knew. "{mom}!" {he} {shouted}, and {he} ran as fast
  as {he} could.

- "You did just the right thing," said {elder}. "I was so {scared}," {whispered} {hero}.
- "I am sorry. I forgot to stay close," said {hero}. {Elder} hugged {him} for a long time.

/
- They held hands all the way home. {Supper}
- On the way home, {elder} bought {him} a {yummy} {treat}, and {hero} did not let go of {his3} hand.
  {Bedtime}

== the race
slow = turtle, snail, duck, mole, hedgehog, toad, old donkey, beetle
- There was a big race {in_place}. {hero} wanted to win. {He} was very fast.
- "On {day} there will be a race," said the {job}. "The winner gets a {shiny} {treasure}!" {hero}
  was excited.

- {He} practiced every {time}. {He} ran up the hill and down the hill, until {he} was {tired}.
- Everybody came: the {animal}, the {animal2}, and even the {slow}, who was the slowest of all.

/
- "Ready, set, go!" {shouted} the {job}. {hero} {ran} past {sight}. {He} was in front!
- {Friend} was fast, too. At first they ran side by side. Then {hero} was a little ahead.

- {Suddenly} there was a cry. {Friend} had fallen over a [stone|root|branch] and held {his2} {body}.
- Then {hero} looked back. {Friend} sat {hideout} and could not get up.

- {hero} could already see the finish. {He} could win! But {he} looked at {friend} again.
- "Run on!" everyone {shouted}. But {hero} stopped. A friend is worth more than a {treasure}.

/
- {He} turned around and put {friend}'s arm around {his} neck. "We will finish together," {he} said.
- {He} went back and helped {friend} up. Slowly, step by step, they walked to the finish.

- The {slow} came in first! It was so surprised that it forgot to cheer.
- The others had passed them long ago. They were the very last.

- But the people clapped for {hero} the loudest. "That was a real win," said the {job}.
- The {job} gave {hero} a {color} ribbon. "This one is for the kindest heart," the {job} said.

/
- "Thank you," said {friend}. "Next time I will wait for you." {Friends}
- {hero} was so {happy} that {he} did not think about the {treasure} at all. {Supper}

== the treasure map
- One {time}, {hero} found an old {container} in the {room}. In it was a map with a red cross on it!
- While {he} was looking for {his} {toy}, {hero} found a yellow piece of paper {spot}. It was a
  treasure map!

- "{Wow}! Let us find the treasure," {he} said to {friend}. They packed a rope, a lamp, and some
  {treat}s.
- {He} {ran} to {friend}. "Look what I have!" {he} {whispered}. They took a shovel and a bag and
  {walked} off.

/
- First they had to find [the old well|the crooked bridge|the lonely tower|the three stones|the
  hollow tree|the empty mill]. {Scene}
- "Take {number} steps to the {tree} tree," read {friend}. They counted the steps out loud.

- Then they had to cross a stream. {hero} slipped on a wet stone, but {friend} held {him}.
- Then they had to crawl through a dark tunnel. "Are you scared?" asked {friend}. "Only a bit," said
  {hero}.
- On the way, a [grumpy goose|fat toad|big dog|stubborn goat|hissing swan] blocked the path. They
  gave it a {treat}, and it let them pass.

- At last they stood in front of a {big} rock. "Here is the cross! We have to dig," said {hero}.
- At last they came to the right place {in_place}. They dug and dug, until the shovel hit something
  hard. Clonk!

/
- It was a {container2}! They opened it with trembling hands. But there was no gold in it.
- In the ground was an iron chest. Inside lay a {shiny} {treasure} and a letter.

- There was only an old photo of two children. "That is {mom}, when {he3} was little!" {shouted}
  {hero}.
- "Whoever finds this," said the letter, "has already found the best treasure: a friend to look for
  it with."

/
- {hero} and {friend} looked at each other and laughed. They put one of their own toys into it and
  buried it again, for the next ones who would come.
- They took it to {elder}, and {elder} told them a long story about the old days. {Supper}

== the magic thing
magic = lamp, stone, ring, feather, shell, flute, key, mirror, wand, spoon, button, whistle,
  paintbrush
- One {time}, {hero} found a {strange} {magic} {in_place}. When {he} rubbed it, it began to glow.
- {hero} helped an old woman to carry her {bag} home. She gave {him} a {strange} {magic}. "It can do
  magic," she said.

- "You have three wishes," said a tiny voice. "But think well before you speak."
- "{Hello}, {hero}," said the {magic}. "I can give you three wishes."

/
- "I wish for a hundred {treat}s!" said {hero}. Puff! {Treat}s fell from the sky like rain.
- "I want to be as {big} as a {tree} tree!" said {hero}. Whoosh! {He} grew and grew, until {his}
  head was in the clouds.
- "I want to fly like a {bird}!" said {hero}. Swoosh! {He} rose into the air, over roofs and towers.

- At first it was fun. But then nobody could play with {him}, and {he} felt {sad}.
- {hero} laughed. But {later} {he} looked down and saw {friend}. {Friend} was {scared} of {him}!
- It was wonderful, but there was nobody to share it with.

- So {he} said, "I wish that everything was as before." Puff! It was.
- "Please make it stop," {he} said. And with a soft pop, all was as it had been.

/
- There was only one wish left. {hero} thought about it for {number} days.
- "One wish is left," said the {magic}. {hero} could have a palace, or a mountain of gold. {He}
  {thought}.

- Then {he} heard that {neighbor} was very ill. "I wish that {neighbor} gets well," said {hero}.
- Then {he} saw a {animal} with a hurt leg {hideout}. "I wish that it can run again," said {hero}.

- "That was your best wish," said the {magic}. It gave a last soft light, and then it was only a
  {magic}.
- And so it happened. The {magic} did not glow anymore, but {hero} felt warm all over.

/
- {hero} put the {magic} on {his} shelf. {He} never told anyone, but {he} was so {happy}.
- Since then, {hero} has known that the best wishes are those you make for others. {Bedtime}

== the big scary beast
big_one = bear, wolf, lion, tiger, dragon, giant, troll, moose, gorilla, bull
- Everyone was afraid of the {big_one} who lived [deep in the forest|high in the mountains|in a dark
  cave|beyond the swamp]. "It eats children for lunch!" people said.
- [Deep in the forest|High in the mountains|In a dark cave|Beyond the river] lived a {big_one}. It
  was so big and so loud that nobody dared to go near it.

- One {time}, {hero} lost {his} way and came to the [cave|den|hut|castle] of the {big_one}. {He}
  wanted to run, but {he} heard somebody crying.
- One {time}, {hero} was picking {fruits} near there. {Suddenly} {he} heard a terrible roar. "Oooh!
  Ow!"

/
- {hero} {moved} closer. It was the {big_one}! A {color} thorn was stuck in its paw.
- {hero} peeked around a tree. There sat the {big_one} with a bone in its throat. Big tears rolled
  down its nose.

- {hero} was {scared}. But {he} was also {good}. "May I help you?" {he} asked in a very small voice.
- "It hurts," said the {big_one}. "Everybody runs away from me. Nobody helps." {hero} took a deep
  breath.

- "Hold still," {he} said. {He} took hold of it and pulled with all {his} strength. Plop! It was
  out.
- {He} closed one eye and pulled. One, two, three, and it was out!

/
- The {big_one} opened its {big} mouth. Would it eat {him} now? No, it smiled! "Thank you, little
  {boy}," it said.
- "Are you going to eat me?" asked {hero}. The {big_one} laughed until the trees shook. "I only eat
  {fruits} and {meal}!"

- It carried {hero} home on its back. People ran into their houses and locked the doors. "Do not be
  afraid," said {hero}. "This is my friend."
- It gave {hero} a [jar|pot|bucket] of honey and showed {him} the way home. "Come back soon," it
  said.

/
- Now the {big_one} plays with all the children. It is the best slide in the whole village!
- {hero} learned that someone who looks scary can have a soft heart. {Bedtime}

== the snowman
- When {hero} woke up, everything was white. It had snowed all night!
- It was [December|January|February], and it snowed. The flakes were as big as feathers. {hero}
  {ran} to the window.

- {He} put on a {color} [coat|jacket|sweater|scarf], boots, and thick mittens, and {walked} out to
  {friend}.
- {Friend} was already outside with a sled. "Come out!" {friend} {shouted}. "The snow is perfect!"

/
- They rolled {number} big balls and built a snowman. They gave it a carrot for a nose and a
  [hat|bucket|pot|cap|basket] for its head.
- They built a snowman. Its eyes were two [buttons|stones|nuts|pieces of coal], and its mouth was a
  row of {fruits}.

- "He needs a name," said {friend}. "Let us call him [Frosty|Mr. Cold|Captain Ice|Snowy|Uncle
  Winter]," said {hero}.
- "He looks like {neighbor}!" laughed {hero}, and they laughed so hard that they fell into the snow.

- They threw snowballs, they made snow angels, and they slid down the hill, until their noses were
  red.
- They danced around him and sang all the winter songs they knew.

/
- But the next {time}, the sun was warm. Drip, drip, drip. The snowman became smaller and smaller.
- After {number} days, the snow began to melt. The carrot fell off, and the snowman leaned to one
  side.

- "Do not go!" {cried_out} {hero}. {He} was {sad}. "We have to help him!"
- "He is melting!" {hero} told {elder}. {He} had tears in {his} eyes.

- "He is not really gone," said {elder}. "He turns into water and goes back to the clouds. Next
  winter he will fall down again."
- "He has to travel north, where it is cold," said {friend}. "In winter he will come back." {hero}
  nodded slowly.

/
- {hero} kept the carrot nose in a {container}. And when the first snow fell the next year, {he} was
  ready.
- A little puddle was all that was left. Next to it, {hero} found the first {color2} flower of
  spring, and {he} smiled again.

== the sandcastle
- {hero} and {elder} went to the beach. The sand was warm, and the waves were blue.
- On {day}, {hero} was at the beach. {He} had a {color} bucket and a shovel.

- {hero} built a sandcastle with {number} towers. {He} put [shells|pebbles|bottle caps|bits of
  glass|seaweed] on the walls and a feather on top.
- {He} dug and patted all {time}, until there was a castle with a gate, a bridge, and a pointed
  tower.

- "A king lives in it," said {hero}, "and a {bug}, who is his best friend."
- "{Wow}! What a {nice} castle," said a {job} who walked by.

/
- Then a {big} wave came. Whoosh! When it went back, only a wet lump of sand was left.
- {Suddenly} a dog ran after a ball, right through the middle of the castle. All the towers fell
  down.

- "My castle!" {cried_out} {hero}. {He} sat down in the sand and {cried}.
- {hero} was so {angry} that {he} kicked the sand. "Go away!" {he} {shouted}.

- {Friend} put a hand on {his} arm. "We can build a new one, a little farther up," {he2} said. "I
  will help you."
- A {little} {boy2} came over. "That is sad," {he2} said. "My name is {friend_name}. Shall we build
  it again together?"

/
- This time they dug a deep ditch around it. The next wave came, ran into the ditch, and stopped. It
  worked!
- With four hands it was much faster. The new castle had {number} towers and a harbor for boats.

- "It is even better than the first one," said {hero}.
- They put a {color2} flag on it, and they both made a bow, like real kings.

/
- When the sun went down, the sea took the castle in the end. But this time {hero} only waved.
  "Tomorrow we will build a bigger one!"
- {Friends} Every summer they build a castle, and every time it is a little bigger.

== coins for the market (child)
- {hero} had saved {number} coins in a {container}. Today {he} wanted to buy a {color} {toy}.
- One {time}, {elder} gave {hero} {number} coins for {his} help. {He} had learned to {chore}.

- {He} {walked} to the market. There were {vegetables}, {fruits}, and {flowers}. There were {wear}s
  and {toy2}s, too.
- The market was full of people. A {job} sold {treat}s, and an old woman sold {flowers}. {hero}
  looked at everything.

/
- Then {he} saw it: a {nice} {color} {toy}! It cost all {his} coins. {He} held them tight in {his}
  hand.
- "How much is that {color} {toy}?" {hero} asked. "{Number} coins," said the {job2}. {hero} had just
  enough!

- But in a corner sat a {little} {boy2}. {He2} looked at the {treat}s with big eyes, but {he2} had
  no money.
- Next to the stall stood a {boy2} with bare feet. {He2} was crying, because {he2} had lost {his2}
  money for the bread.

- {hero} looked at the {toy}. Then {he} looked at the {boy2}. It was not easy to choose.
- {hero} {thought}. {He} could have the {toy} today, or {he} could help.

/
- {He} bought a {treat} and some {meal} and gave them to the {boy2}. "Here, this is for you," {he}
  said.
- "Take these," said {hero}, and put the coins into {his2} hand.

- The {boy2} {smiled}. "Thank you! My name is {friend_name}. I will never forget this."
- "Why are you so kind?" asked the {boy2}. "Because today you need it more," said {hero}.

/
- {hero} went home without the {toy}, but {his} heart was light. {Elder} {hugged} {him}. "You bought
  the best thing of all," {he3} said.
- Weeks later, {friend} came to the house of {hero}. {He2} had made a {toy} out of {stuff} and
  {stuff2}. It was the nicest {toy} in the world.

== the seed
plant = sunflower, pumpkin, bean, tomato, rose, apple tree, melon, carrot, tulip, cherry tree,
  strawberry
- {Elder} gave {hero} a tiny seed. "If you take good care of it, it will be a {plant}," {he3} said.
- One {day} in [March|April|May], {hero} found a little brown seed. "What will it be?" {he}
  wondered.

- {hero} dug a hole {hideout} and put the seed into it. {He} covered it with earth and gave it
  water.
- {He} planted it in a pot on the windowsill, where it had plenty of sun.

/
- The next {time}, {he} ran out to look. There was nothing to see but dirt. "Why does it not grow?"
  {he} asked.
- {hero} waited one day. {hero} waited {number} days. Nothing happened. {He} was {angry} and wanted
  to dig it up.

- "You cannot see it, but it is working hard under the ground," said {elder}. "It needs time."
- "Patience," said {elder}. "You did not learn to walk in one day either."

- So {hero} gave it water every {time}. {He} sang to it, and {he} told it about {his} day.
- It rained, and the sun shone, and a {bug} crawled over the spot. {hero} pulled out the weeds and
  waited.

/
- Then, one {day2}, a small green tip looked out of the earth. "{Wow}! {mom}, come {quickly}!"
  {shouted} {hero}.
- One {time}, {he} saw something green, no bigger than a {bug}. {hero} danced around it for joy.

- It grew up to {his} knees. It grew up to {his} chin. In [June|July|August] it was taller than
  {hero}!
- First came two leaves, then four, then too many to count. A {color} butterfly came to visit.

- But one night there was a storm. {hero} ran outside in {his} pajamas, tied the plant to a stick,
  and held an umbrella over it.
- A {animal} wanted to eat it. So {hero} built a little fence of sticks all around it.
-

/
- In the end it was the most beautiful {plant} {in_place}. {hero} shared it with {friend} and kept
  the seeds for the next year.
- "You see," said {elder}, "good things take time." {hero} nodded and put a new seed into the
  ground.

== the boat on the stream
- {hero} folded a boat out of {color} paper and wrote {his} name on it.
- {hero} and {elder} built a small wooden boat with a {color} sail. {hero} painted a {animal} on it.

- {He} took it to the stream and put it on the water. {Scene}
- "Sail, little boat!" {he} said, and put it into the stream.

- The water carried it away, faster and faster. {hero} {ran} beside it, but {he} could not catch it.
- At first it turned in circles. Then the current took it, and it went around a bend and was gone.

/
- It sailed under a bridge and past {sight}. A {animal} watched it and wondered.
- It bumped into a rock, it jumped over a little waterfall, and a fish nibbled at it. But it did not
  sink.

- A {bug} landed on it and traveled with it for a while. At night, the moon shone on its sail.
- It passed a mill, a village, and a herd of cows. A {bird} sat on it and took a rest.

- Meanwhile, {hero} sat at home and was {sad}. "My boat is lost," {he} said. "Maybe it is on an
  adventure," said {elder}.
- {hero} looked for it until it got dark. "It will be at the sea by now," said {elder} and took
  {him} home.

/
- Far down the stream lived a {boy2} named {friend_name}. One {time}, {he2} saw something {color} in
  the reeds.
- A {boy2} named {friend_name} was fishing there. But there was no fish on the hook. It was a boat!

- "{hero}," {he2} read. "I want to find out who that is." {He2} {walked} up the stream and asked
  everyone.
- {Friend} dried it and read the name on it. The next {time}, {he2} set off to find its owner.

- Somebody knocked at the door. "Is this yours?" asked {friend}. {hero} could not believe {his}
  eyes.
- {Later} {friend} stood in front of {hero} with the boat in {his2} hands. "I think this belongs to
  you," {he2} said.

/
- {Friends} They built a second boat, a {color2} one, and let both sail side by side.
- That is how {hero} and {friend} met. "My boat went out to find me a friend," {hero} always said.

== the escaped hen
farm = hen, sheep, pig, goat, cow, goose, horse, calf, donkey, lamb, rooster
- {hero} was visiting a farm. There were cows, sheep, and hens, and it smelled of hay.
- {hero} helped the farmer every {time}. {He} fed the cows, brushed the horses, and carried the
  milk.

- "Please close the gate," said the farmer. But {hero} saw {sight} and forgot about the gate.
- One {time}, {he} was in a hurry and did not close the gate. {He} wanted to {hobby}.

- {Later} the {farm} was gone! There were only footprints in the mud.
- The {farm} looked at the open gate, took one step, and another, and {ran} away.

/
- "It is my fault," said {hero}. "I have to bring it back." {He} and {friend} followed the
  footprints.
- {hero} turned pale. "I have to tell the farmer the truth," {he} said. The farmer was not angry.
  "Then let us look for it," the farmer said.

- The footprints led through the {vegetables}, around the barn, and over a bridge. There was
  {sight}, but no {farm}.
- They asked a {job}. "I saw a {farm} {in_place}," the {job} said, "and it looked very happy!"

- There it was! It stood in the middle of the road and ate {vegetables}. When it saw {hero}, it ran
  off again.
- {Suddenly} they heard a noise {hideout}. There stood the {farm}, up to its neck in {flowers}.

/
- {hero} {ran} after it and fell into a puddle. {Friend} jumped and missed. The {farm} seemed to
  laugh at them.
- They pushed from behind, and they pulled from the front. But the {farm} did not want to move.

- "Stop," said {hero}. "We have to be smarter." {He} took some {fruits} out of {his} {bag} and laid
  a trail to the gate.
- Then {hero} sat down quietly and sang the song that the farmer always sang in the evening. The
  {farm} pricked up its ears and came closer.

- Step by step, the {farm} followed {him} back to the farm. Click! Now the gate was closed.
- And so the {farm} walked home behind {hero}, as tame as a {pet}.

/
- "Well done," said the farmer, and gave them {meal} and fresh milk. {hero} never forgot the gate
  again.
- {hero} checked the gate twice before {he} went to bed. {Bedtime}

== the moon in the water
pail = bucket, bowl, jar, pot, pan, basin, pitcher, kettle, bathtub, barrel
- One night, {hero} saw the moon in the [pond|lake|river|well]. "{Ohno}! The moon has fallen into
  the water!" {he} said.
- {hero} loved the moon. One {time}, {he} told {friend}, "I want to have the moon in my {room}."

- {He} {ran} home to get a {pail}. "I will catch it," {he} said.
- {Friend} {thought}. "I saw it in the water," {he2} said. "We can fish for it with a net and a
  {pail}!"

/
- {He} put the {pail} into the water and pulled. But when {he} looked inside, there was only water
  and a {bug}.
- They fished with a net. They fished with a hat. They caught a {strange} {treasure}, a shoe, and
  {number} fish, but no moon.

- As soon as {he} touched it, the moon broke into a thousand {shiny} pieces. "Now I have broken it!"
  {cried_out} {hero}.
- The moon danced on the waves and always slipped away. {hero} leaned over too far, and, splash,
  {he} fell in!

- A voice came from the {tree} tree. It was a wise old owl. "Whoo," it said. "Look up, little one."
- A gentle voice said, "Look up." It was {elder} with a lantern.

/
- {hero} looked up. There was the moon, {shiny} and round, high above the {tree} trees. It was not
  broken at all.
- And there it was, in the sky, where it had always been.

- "You only saw its reflection," said the voice. "Nobody can own the moon. It shines for everyone."
- "It is too far away to catch," said {hero}. "But I can look at it every night."

/
- {hero} put the {pail} next to {his} bed, full of water. And when {he} looked into it, a very small
  moon looked back. {Bedtime}
- At home, {hero} opened the curtain. The moon shone right onto {his} pillow. "Good night, moon,"
  {he} {whispered}.

== the bridge
- There was a stream {in_place}. {hero} lived on one side, and {friend} lived on the other.
- A storm had carried the old bridge away. Now {hero} could not get to {friend} anymore.

- They could wave and shout, but they could not play together. That made them both {sad}.
- "{Hello}!" {shouted} {hero} over the water. "{Hello}!" {shouted} {friend} back. But that was all
  they could do.

/
- "We need a bridge," said {hero}. "But I do not know how to build one."
- {hero} tried to jump over, and landed in the cold water. {He} tried to swim, but the water was too
  fast.

- {He} put a thin branch across. Snap! It broke. {He} tried a rope, but the knot came loose.
- First {he} tried it with [mud|straw|leaves|sand], but the water washed everything away.

- A beaver watched {him} and shook its head. "You have to begin with something strong," it said.
- Then {neighbor} came by. "You need a plan," {he4} said, and drew one in the sand.

/
- {hero} rolled logs from the left, and {friend} rolled logs from the right. The {animal} brought
  sticks, and the {animal2} brought {stuff}.
- They all worked together. Some carried stones, some tied ropes, and some brought {meal} for
  everyone.

- It took {number} days. {hero} had blisters on {his} hands, but {he} did not complain.
- They worked on {day}, and they worked on {day2}. Bit by bit, the bridge grew from both sides.

- Then the last log was in its place. {hero} and {friend} ran to the middle and hugged each other.
- "{Wow}!" they {shouted} when they met in the middle. The bridge did not even shake.

/
- Now everyone uses the bridge, even {neighbor} with the wheelbarrow. There is a sign on it: "Built
  by friends."
- {Friends} And if you ever come to that stream, you can walk across it, too.

== the storm
- One {time}, {hero} and {friend} were playing {in_place}. They {played} and did not look at the
  sky.
- {hero} was on {his} way home from {friend}. {Suddenly} it became as dark as night.

- {Suddenly} there was a flash, and then a boom. Thunder! The rain fell in buckets.
- The wind howled, the branches cracked, and lightning lit up the clouds.

/
- "I want to go home!" {cried_out} {hero}. {He} put {his} hands over {his} ears. {He} was {scared}.
- {hero} began to run, but the path was full of water, and {he} could not see where {he} was going.

- Then they heard a weak voice. A little {animal} sat {hideout}, wet and shaking.
- Then {he} saw a {little} {animal} in the mud. It could not move, because its leg was caught under
  a branch.

- {hero} forgot {his} own fear. "Come with us," {he} said, and put it under {his} {wear}.
- {hero} stopped. It was even smaller than {he} was, and even more {scared}. {He} lifted it up and
  held it close.

/
- They found a dry cave. They sat very close together and listened to the storm.
- {Later} they saw a light. It was the house of {neighbor}. "Come in, come in!" {he4} said, and gave
  them {warm_thing}.

- "Let us count," said {hero}. "Between the flash and the boom. Two, three, four... Every time it is
  farther away."
- To make the little one feel better, {hero} told a story. When it was over, so was the storm.

/
- The clouds went away, and the last drops shone like {treasure}s. The {animal} sniffed at {hero}'s
  hand and {ran} home.
- In the morning, a rainbow stood {in_place}. {Elder} came running and {hugged} them all.

- "Were you not afraid?" asked {elder}. "Yes," said {hero}, "but somebody needed me."
- After that, {hero} liked to watch storms through the window. {Bedtime}

== the runaway balloon
balloon = balloon, heart balloon, star balloon, animal balloon, fish balloon
- At the fair, {elder} bought {hero} a {color} {balloon}. "Hold the string tight," {he3} said.
- There was a fair {in_place}, with music, rides, and {treat}s. {hero} won a {color} {balloon}!

- {hero} showed it to {friend}. "{Wow}! May I hold it?" asked {friend}. "Be careful," said {hero}.
- {hero} walked around proudly with it. {He} saw a {job} and {sight}.

- But {hero} sneezed, and the string slipped away. Up, up, up went the {balloon}!
- {Suddenly} a {pet} {ran} by. For one second the string was loose, and the {balloon} flew off.

/
- "Come back!" {shouted} {hero}. They {ran} after it, past {sight} and past {sight}.
- {hero} jumped as high as {he} could, but it was no use. The {balloon} danced over the roofs.

- It flew over the church. It flew over the river. It became as small as a {treasure}, and then it
  was gone.
- A {bird} flew around it, but it could not catch it either.

/
- {hero} {cried}. "It was the best one I ever had," {he} said.
- "I am so sorry," {whispered} {friend}. {hero} was {sad}, and nobody spoke for a while.

- "Who knows where it is going?" said {elder}. "Maybe to somebody who needs it." {hero} dried {his}
  tears. {He} liked that thought.
- "It wanted to see the world," said {elder}. "What do you think it can see now?" {hero} {thought}.
  "The sea," {he} said. "And mountains. And {sight}!"

/
- Far away, a sick {boy2} sat at a window. {He2} was lonely. Then something {color} floated down,
  right into {his2} garden. For the first time in weeks, {he2} laughed.
- A few days later, a letter came. "I found your {balloon} in my {tree} tree," it said. "It made me
  so happy. Will you be my friend?"

- And somehow {hero} felt, at that very moment, that everything was all right. {Bedtime}
- {hero} smiled all {time}. Sometimes you must lose something, so that somebody else can find it.

== the train trip
- {hero} was going to visit {his} grandparents by train. {He} had never been on a train before.
- On {day}, {hero} and {elder} took the train to the [sea|city|mountains|coast|zoo]. {hero} was so
  excited that {he} could not sit still.

- {He} had {his} {toy} in one hand and a {bag} of {treat}s in the other.
- "Do you have your ticket?" asked {elder}. "Do you have your {wear}? Do you have your {toy}?"
  {hero} nodded {number} times.

- The whistle blew, and the train began to move. {hero} looked out of the window. {He} saw {sight},
  {sight}, and {sight}.
- Choo choo! Houses, trees and towers flew by. "There is {sight}!" {shouted} {hero}. "And there is
  {sight}!"

/
- Next to {him} sat an old man with a long white beard. He had nothing to eat and looked {tired}.
- On the other seat sat a {boy2} named {friend_name}. {He2} looked {sad2}. "I have to move away, and
  I lost my {toy2}," {he2} said.

- {hero} held out {his} {bag}. "Would you like a {treat}?" {he} asked.
- {hero} {thought}. Then {he} moved closer. "Do you want to play with mine?" {he} asked.

- They talked and laughed and played {game}. The time went by so fast!
- They looked at a map together, and they guessed the names of the rivers.

/
- When {hero} got off, {he} was so happy that {he} forgot {his} {toy} on the seat! The doors closed.
  "Oh no!" {he} {cried_out}.
- At the station, everything went very fast. Only on the platform did {hero} notice it: {his} {wear}
  was still on the train!

- But the window opened, and a hand reached out. "You forgot this!" somebody called, just in time.
- Then somebody knocked on the glass from inside, opened the window, and threw it right into {his}
  arms.

/
- {hero} waved until the train was only a dot. "I shared something, and I got something back," {he}
  told {elder}.
- {hero} will never forget that day. And when {he} hears a train at night, {he} smiles and waves.

== the ugly hat
- {Elder} had made a {wear} for {hero}. It was {color} and {color2}, and much too big.
- For {his} birthday, {hero} got a {wear} from {neighbor}. It had {color} {bug}s on it. {hero}
  thought that it looked {strange}.

- "Everyone will laugh at me," thought {hero}. But {he} did not want to hurt anybody, so {he} put it
  on.
- "Thank you," {he} said politely. But {he} hid it {spot}.

/
- The next {time}, {he} had to go {to_place} in it. {Friend} looked at it and giggled. "You look
  like a [pumpkin|cabbage|parrot|clown|tent|lampshade]!"
- "Where is your new {wear}?" {elder} asked the next {time}. {hero} blushed, got it, and went out
  with it.

- {hero} felt {sad} and looked at the ground. Then {he} heard somebody call, "Help!"
- {He} was {angry}. {Suddenly} a [squirrel|rabbit|goat|mouse|puppy] came running. "Please help us!"
  it said.

- A [lamb|kitten|baby rabbit|little mole|hedgehog] had fallen into a deep hole and could not get
  out. There was no rope, and there was no ladder.
- {Number} little {bird}s had fallen out of their nest, and a cold wind was blowing.

/
- {hero} had an idea. {He} took off the {wear} and pulled a thread. It was so long and so strong
  that it reached all the way down!
- {hero} looked at the {wear}. It was big, and it was warm. It was just right!

- "Hold on!" {he} {shouted}, and everyone pulled together. Soon all of them were safe.
- {He} laid it down like a nest. Soon everyone was safe and warm.

/
- "What a {nice} {wear}," said {friend}. "Can I have one, too?" {hero} laughed and laughed.
- "It is the best {wear} in the world," {he} told {elder}. "It only looks a little funny."

- Now {he} wears it every {day}, and nobody giggles anymore.
- {hero} learned that you should never judge a thing by its looks. {Bedtime}

== the lost glasses
- Old {neighbor} lived next door. One {time}, {he4} stood in the garden and looked so {sad}.
- {hero} heard a noise from the house of {neighbor}. "Where are they? Where are they?" {he4}
  {shouted}.

- "What is wrong?" asked {hero}. "I lost my glasses," said {neighbor}, "and I cannot see a thing
  without them."
- {neighbor} had lost {his4} {color} glasses. {He4} had put salt into {his4} tea and a
  [sock|spoon|carrot] into the vase!

/
- "I will be a detective," said {hero}. {He} took a magnifying glass and a notebook and called
  {friend_name}.
- "We will find them," said {hero} and {friend}. "Detectives never give up!"

- They looked {spot}. They looked {spot}. They found {number} keys, a {treasure}, and an old
  {treat}.
- "Where did you have them last?" asked {friend}. "I was reading {in_place}, and then I wanted to
  {chore}," said {neighbor}.

- {hero} found a clue: crumbs of {treat}! They led through the {room}, out of the door, and to the
  shed.
- The {pet} of {neighbor} looked very guilty. "Hmm," said {hero}. "What do you know about this?"

/
- {Suddenly} {hero} looked up and began to laugh. The glasses were on top of {neighbor}'s head!
- They followed {neighbor}'s {pet} {to_place}. There it had hidden a sock, a {toy}, and the glasses,
  all in a neat pile.

- "{Ohno}! What a silly old {man4} I am," said {neighbor}, and they all laughed until their tummies
  hurt.
- {neighbor} put them on and looked at {hero}. "Now I can see how {good} you are," {he4} said.

/
- {neighbor} baked them a {treat} as big as a wheel. It tasted a bit strange. Maybe it was the salt.
- From then on, {hero} and {friend} were the detectives of the whole street. On {day}, they found a
  lost {pet2}. But that is another story.
"""
