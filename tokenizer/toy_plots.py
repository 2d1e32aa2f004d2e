"""The plots of the toy stories at home and among friends; the others are in `toy_adventures.py`.

    == title           a plot; `(child)` or `(animal)` after the title: only for such a hero
    name = a, b, c     a word list of this plot, kept as in `toy_words.KEPT`
    - line             one way to tell a beat; the lines of a beat stand together,
      goes on          a blank line ends the beat
    /                  a new paragraph

In a line, `{name}` is a word of `toy_words`, a line of `PARTS`, or one of the cast: `{hero}`,
whose kind is `{boy}` (girl, fox), `{he}`, `{him}`, `{his}`, `{himself}`; the same with a 2 for
`{friend}`, with a 3 for `{elder}`, whom the hero calls `{mom}`, with a 4 for `{neighbor}`. At the
first mention, `{friend}` is introduced; `{friend_name}` never is. `[one|the other]` is either.
"""

PARTS = """
== opening_child
- Once upon a time, there was a {little} {boy} named {hero}. {He} lived in {a_home} with {his}
  {family}.
- Once there was a {trait} {boy} called {hero}. {About}
- {hero} was a {trait} {boy} who lived {nearby}. {About}
- There once was a {boy} whose name was {hero}. Everybody knew {him}, because {he} was so {trait}.
- Once upon a time, a {boy} named {hero} lived in a [town|village|city] [by the sea|near the
  mountains|with narrow streets|with red roofs|full of gardens]. {About}
- {hero} was {number} years old. {He} had {hair} hair and [a big smile|freckles on {his} nose|a loud
  laugh|two missing teeth|bright {eyes} eyes]. {About}
- In a [little|quiet|busy|sunny] [town|village] there lived a {trait} {boy}. {His} name was {hero}.

- There was a {boy} in our [street|town|village|school] who was called {hero}. {He} was {good}, but
  sometimes {he} could be {fault}.
- This is the story of {hero}, a {boy} who lived {nearby}. {About}
- Do you know {hero}? {He} is a {trait} {boy} with [a big smile|freckles on {his} nose|a loud
  laugh|two missing teeth], and this is what happened to {him} last
  [spring|summer|autumn|winter|week|year].

== opening_animal
- Once upon a time, there was a {little} {boy} named {hero}. {He} lived in a [cozy|warm|snug|quiet]
  {home}. {About}
- Once there was a {trait} {boy} called {hero}. {He} had {feature} and lived in a {home}.
- Far away, [deep in the forest|in a green valley|beyond the hills|on a small island], lived a {boy}
  with {feature}. {His} name was {hero}. {About}
- {hero} was a {trait} {boy}. {He} had {feature}, and {he} was very proud of {himself}.
- Once upon a time, a {boy} named {hero} lived with {his} {family} in a {home}. {About}
- Long ago, in a [green|quiet|faraway] [forest|valley|jungle|meadow], there was a {trait} {boy}
  named {hero}. {About}

- This is the story of {hero}, a {boy} with {feature}. {About}
- Do you know {hero} the {boy}? {He} lives in a {home}, and this is what happened to {him} last
  [spring|summer|autumn|winter|year].
- Among all the animals of the [forest|valley|jungle|island], nobody was as {trait} as {hero} the
  {boy}.

== about
- {he} loved to {hobby} and {hobby}.
- {he} was {virtue} and {virtue}.
- every {time}, {he} liked to {hobby}.
- {he} liked many things, but most of all {he} liked to {hobby}.
- {his} favorite color was {color3}, and {his} favorite food was {meal2}.
- {he} was {virtue}, but sometimes {he} could be {fault}.
- {he} had [a lucky pebble|a tiny flashlight|a wooden flute|a magnifying glass|an old pocket watch|a
  little notebook|a striped umbrella] that {he} took everywhere.

== family
- mom and dad
- big family
- parents and two brothers
- parents and a baby sister
- twin sister
- grandparents

== a_home
- a {little} house
- a house with a {color3} door
- an apartment above a bakery
- a cottage {nearby}
- a farmhouse
- a tall brick building
- a cabin made of logs

== hair
- curly
- long
- short
- brown
- blond
- red
- messy
- black

== eyes
- green
- blue
- brown
- dark

== scene
- {weather}.
- {weather}, and {a_bird} [sang|chirped|whistled] in a {tree} tree.
- {weather}. On the way, {he} saw {sight}.
- {weather}. There was {sight}, and a little farther on there was {sight}.
- The path went past {sight} and {sight}.
- A {bug} [sat on|flew around|landed on] {his} {body}, and that made {him} laugh.

== a_bird
- a {bird}
- a little {bird}
- a {color3} {bird}

== bedtime
- that night, {hero} [slept very well|fell asleep with a smile|dreamed of {dream}].
- when the moon came up, {hero} was already [asleep|snoring softly|dreaming].
- at bedtime, {hero} told {elder} all about it, and {elder} gave {him} a [kiss|big hug].
- that night, {he} closed {his} eyes and dreamed of {dream}.
- when {he} went to bed, {he} hugged {his} pillow and dreamed of {dream}.

== supper
- then they went home and had {meal} and {fruits}.
- for supper they had {meal}, and after that there was a {yummy} {treat2} for everyone.
- back home, {elder} made {meal}, and it tasted better than ever.
- in the evening they sat at the table and had {meal} and {vegetables}.

== friends
- from that day on, {hero} and {friend} were best friends.
- after that, {hero} and {friend} played together every day.
- {hero} and {friend} stayed friends for a long, long time.
- and {hero} knew that {friend} would always be {his} friend.

== thanks
- "Thank you so much!" said {hero}.
- "Thank you, you are so {good}," said {hero}.
- {hero} said thank you and gave {him2} a hug.
- "You are the best friend in the world," said {hero}.
"""

PLOTS = """
== the lost toy
- {hero} had a {color} {toy}. It was {his} {best} thing in the whole world.
- The thing {hero} liked most was {his} {color} {toy}. {He} took it everywhere.
- For {his} birthday, {hero} got a {color} {toy} from {elder}. {He} played with it every day.

/
- One {time}, {hero} wanted to play with the {toy}, but it was gone. "{Ohno}! Where is my {toy}?"
  {he} {cried_out}.
- One {day}, the {toy} was not in its place. {hero} looked {spot} and {spot}, but {he} could not
  find it anywhere.
- One {time}, {hero} came home from {the_place} and saw that {his} {container} was empty. The {toy}
  was lost!

- {He} felt so {sad}. {Elder} said, "Do not worry. When did you have it last?"
- {He} sat down and {cried}. {Elder} {hugged} {him} and said, "Let us think. Where did you play
  yesterday?"

/
- {Friend} came by. "I will help you," said {friend}. Together they looked {hideout} and {hideout}.
- {hero} {ran} to {friend}. "Can you help me find my {toy}?" {he} asked. "{Sure}!" {replied}
  {friend}, and they began to search {hideout}.

- They found a {shiny} {treasure} and an old {wear}, but no {toy}.
- First they found a {wear}. Then they found {number} {color2} {treasure}s. But there was no {toy}.
-

- {Suddenly}, {friend} {shouted}, "I see something {color}!" There, {hideout}, was the {toy}.
- {Later}, {hero} heard a funny sound. A {animal} was sitting {hideout}, and next to it lay the
  {color} {toy}!
- {Later}, they looked {in_place}. "There it is!" {shouted} {friend}. The {toy} was {hideout}.

/
- {hero} was so {happy} that {he} jumped up and down. {Thanks} Then they played with the {toy}
  together.
- {hero} held the {toy} tight. {Thanks} From then on, {he} always put it back in its {container2}.
- {Thanks} {hero} learned to take good care of {his} things. {Bedtime}

== sharing the treat
- One {time}, {elder} gave {hero} a {yummy} {treat}. It smelled so good!
- One {day}, {hero} had a {yummy} {treat} in {his} {container}. {He} had waited for it all {time}.
- {hero} went to the shop with {elder} and bought a big {treat} with {his} own {number} coins.

- {He} sat down {in_place} to eat it. {Scene}
- {He} took it {in_place}. {Weather}.

/
- {Friend} came along and looked at the {treat}. "May I have a bite?" {he2} asked. "I am so hungry."
- Then {hero} saw {friend}. {Friend} had no lunch, and {his2} tummy made a loud noise. "Could you
  share with me?" {he2} asked.

- "No!" said {hero}. "It is mine." {Friend} looked at the ground and walked away.
- {hero} shook {his} head and hid the {treat} behind {his} back. {Friend} was so {sad2} and left.

/
- But the {treat} did not taste good anymore. {hero} looked at {friend}, all alone {hideout}, and
  {his} heart felt heavy.
- {hero} took one bite. Then {he} remembered how {friend} had shared some {fruits} with {him}. {He}
  felt bad.

- {He} {ran} after {friend}. "I am sorry," {he} said. "Let us share." {He} broke the {treat} into
  two pieces and gave {friend} the bigger one.
- "Wait, {friend_name}!" {shouted} {hero}. "I was wrong. Here, half of it is for you." {Friend}
  {smiled}.

/
- They ate together, and now the {treat} tasted twice as good. {Friends}
- The next day, {friend} brought {meal} for both of them. {hero} learned that sharing makes
  everything taste better.
- {Friend} said, "Thank you, {hero}." They sat side by side and {played}. {Supper}

== the bird's nest
- One {time}, {hero} went for a walk {in_place}. {Scene}
- One {day}, {hero} and {elder} took a walk {in_place}. {Scene}

- Under a {tree} tree, {he} found a baby {bird}. It had fallen out of its nest and could not fly.
- {Suddenly} {he} heard a weak little cheep. A tiny {bird} lay {hideout}. It was too young to fly.

/
- "Poor little thing," {whispered} {hero}. "Do not be {scared}. I will help you."
- {hero} felt sorry for it. "Where is your mother?" {he} asked. The bird only opened its beak.

- {He} wanted to pick it up, but the nest was very high. {He} needed help.
- {He} looked up. The nest was at the top of the {tall} tree, too high for {him}.

- {He} {ran} to {elder}. "Please come {quickly}!" {he} said. {Elder} brought a [ladder|long ladder|
  little stool and a rope].
- {He} called {friend_name}, who was good at climbing. "Please be careful," said {hero}.

/
- Very slowly, they put the bird back into its nest. There were {number} other little birds in it!
- {hero} held the bird in {his} {wear} to keep it warm. Then, step by step, the bird was carried up
  and put back into its nest.

- The mother {bird} came flying with a worm. She sang her {best} song for {hero}.
- The mother bird flew around {hero} three times, as if she wanted to say thank you.

/
- Every day after that, {hero} came to look. In {month}, the little {bird} spread its wings and
  flew. {hero} waved and felt very proud.
- "You did a good thing today," {elder} said. {hero} felt warm inside. {Bedtime}

== a rainy day
building = castle, rocket, tower, boat, city, robot, zoo, spaceship, tunnel, pirate ship, cabin,
  palace, lighthouse
- It was a rainy {day}. {hero} stood at the window and watched the drops run down the glass.
- One {time}, dark clouds covered the sky, and it rained and rained. {hero} could not go outside.

- {He} had wanted to {hobby}. "This is the worst day ever," {he} said, and {he} was {angry}.
- "I am bored," {he} told {elder}. "There is nothing to do when it rains."

/
- {Elder} {smiled}. "There is always something to do," {he3} said. "Look what I have in this
  {container}."
- Then {friend} knocked at the door in a wet [coat|jacket|raincoat|hat]. "Let us make something!"
  said {friend}. "Do you have an old {container}?"

- In it were {stuff}, {stuff2} and a lot of {stuff3}. "We could make a {building}!" said {hero}.
- {hero} found {stuff}, {stuff2}, and even some {stuff3}. "I know!" {he} said. "We can build a
  {building}."

- They worked for a long time. They cut and glued and painted, until the {room} was full of {color}
  and {color2} [spots|scraps|dots].
- They pushed the chairs together and hung a {color} blanket over them. It took all {time}.

/
- Their {building} was so {big} that they could crawl inside. They ate {treat}s in it and told each
  other stories about a {beast}.
- When it was ready, {he} stood back and looked at it. "{Wow}! It is the best one in the world,"
  {he} said.

- {Later} the rain stopped, and the sun came out. But {hero} did not even notice!
- Outside, the rain stopped, and a rainbow stood over the roofs. "Shall we go out now?" asked
  {elder}. "Not yet," laughed {hero}. "We are too busy!"

/
- "I like rainy days now," {hero} said. {Bedtime}
- {hero} hoped that it would rain again tomorrow. {Supper}

== the noise in the night
visitor = owl, mouse, squirrel, hedgehog, kitten, raccoon, bat, frog, mole, fox, toad, hamster
- One night, {hero} lay in bed. It was very dark. Then there was a noise: "{Noise}."
- {hero} was almost asleep when {he} heard something. "{Noise}," it went, right outside the window.

- {He} pulled the blanket over {his} head. "Is it a {beast}?" {he} {whispered}. {He} was {scared}.
- {His} heart went boom, boom, boom. {He} thought of a {big} {beast} with sharp teeth.

/
- "{Noise}!" There it was again. {hero} {ran} to {elder}. "There is a {beast} outside!" {he} cried.
- {hero} held {his} {toy} tight and called for {elder}. {Elder} came with a candle.

- {Elder} took {his} hand. "Let us look together," {he3} said {softly}. "Things are often smaller
  than they sound."
- "I will stay with you," said {elder}. "Shall we see what it is?" {hero} {thought} and nodded.

/
- They {moved} to the window, opened it a little, and held up the lamp. There sat a tiny {visitor},
  as {scared} as {hero}!
- They opened the door very slowly. It was only a branch of the {tree} tree, knocking on the wall in
  the wind!
- They looked out. A little {visitor} had its nose in a {container}, looking for {fruits}!

- {hero} began to laugh. "You are not a {beast} at all," {he} said.
- "{Hello}, little one," said {hero}, and all {his} fear was gone.
- "So that was my {beast}!" said {hero}, and {he} laughed until {his} tummy hurt.

/
- After that, {hero} was not afraid of the dark. When {he} heard a noise, {he} [smiled and turned
  over| went to look|listened and guessed what it was].
- {Elder} made [tea with honey|hot cocoa|warm milk], and they sat together by the window and counted
  the stars. {Bedtime}

== the new friend
- One {day}, a new {boy2} came to live next door. {His2} name was {friend_name}.
- A new family moved into the house near {hero}. They had a little {boy2} called {friend_name}.

- {Friend} was very shy. {He2} stood {hideout} and did not say a word.
- The others played {game}, but {friend} only watched from far away. {He2} did not know anybody.

/
- "{friend} looks {sad2}," {hero} told {elder}. "Then say hello," said {elder}. "Sometimes one word
  is enough."
- {hero} saw it. {He} remembered how it felt to be alone.

- {hero} {thought}, and then {walked} over. "{Hello}! I am {hero}. Do you want to play {game}?"
- {hero} took {his} {color} {toy} and {walked} over. "{Hello}," {he} said. "Would you like to play
  with my {toy}?"

/
- {Friend} looked up. "I do not know how to play that," {he2} {whispered}. "I will show you," said
  {hero}.
- For a moment, {friend} said nothing. Then {he2} {smiled}. "Yes, please," {he2} said.

- They {played}, and they {played}. {Friend} was not shy anymore. {He2} could even {skill}!
- Soon they were both laughing. They {played} until the sun went down.

- "Where I come from, we {hobby2}," said {friend}. "Will you teach me?" asked {hero}.
- {Friend} showed {hero} how to make [a paper crane|a whistle out of grass|a lamp out of a turnip|a
  puppet out of an old sock|a flute out of a twig]. {hero} had never seen one before.
-

/
- When it got dark, {friend} asked, "Can we play again tomorrow?" "{Sure}!" {replied} {hero}.
  {Friends}
- {Friends} And it all began with one little hello.

== learning something hard
- {hero} wanted to learn to {skill}. All {his} friends could do it, only {he} could not.
- One {time}, {hero} saw {friend} {skill}. "I want to do that too!" {he} said.

- {He} tried, but it went wrong, and {he} hurt {his} {body}. "Ouch!" {he} {cried_out}.
- The first time, {he} fell flat on {his} tummy. The second time was even worse.

/
- "I will never learn it," {he} said. {He} was {sad}, and {he} wanted to give up.
- {hero} kicked a stone. "It is too hard!" {he} {shouted}, and {he} was {angry}.

- {Elder} sat down beside {him}. "When I was little, I could not {skill} either," {he3} said. "I
  tried every day, and one day it worked."
- "Do not give up," {elder} said {softly}. "Nobody can do everything at once. Try again, a little
  bit every day."
- {Friend} said, "I needed {number} weeks to learn it. Come on, I will help you."

/
- So {hero} practiced on {day} and on {day2}. {He} practiced in the sun and in the rain.
- Every {time} after [breakfast|lunch|supper], {hero} went out and tried again. Sometimes it went
  well, and sometimes it did not.

- Then, in {month}, something happened. {hero} took a deep breath, and suddenly {he} could {skill}!
- {Later} a day came when everything went right. "Look, {mom}!" {he} {shouted}. "I can {skill}!"

- {Elder} {smiled} and clapped. "You never gave up," {he3} said. "I am so proud of you."
- Everyone cheered. {hero} felt as tall as a {tree} tree.

/
- Now {hero} helps others who want to learn. "Try again," {he} always tells them. "I fell down too."
- {hero} learned that hard things become easy when you keep trying. {Bedtime}

== the birthday cake
- It was almost {elder}'s birthday. {hero} wanted to make a cake, all by {himself}.
- "Tomorrow is {mom}'s birthday," thought {hero}. "I will bake a {yummy} cake!"

- {He} asked {friend} to help. They put flour, eggs, milk and {fruits} into a {big} bowl and
  stirred.
- {He} took the flour, the butter and the eggs. {Friend} came to help and brought {fruits}.

/
- But {hero} made a mistake. {He} took the [salt|pepper|mustard] and thought it was sugar!
- They stirred so hard that the bowl fell down. {Ohno}! The dough was on the floor, on the wall, and
  even on the ceiling.
- Then they went out and {played}. When they came back, the cake was as black as coal.

- "Now everything is ruined," said {hero}, and {he} {cried}.
- {hero} looked at it and was {sad}. "What shall we do now?" {he} asked.

- "We still have time," said {friend}. "Let us start again, and this time we will be careful."
- {Friend} {thought}. "We have {fruits} and {treat}s left," {he2} said. "We can make something new!"

/
- They worked {quickly}. {Later}, a {nice} cake with {color} cream and {number} candles stood on the
  table.
- It was not a round cake, and it was a little crooked. But it had {color} stars on it and smelled
  wonderful.

- {Elder} opened the door. "{Wow}! Did you make this for me?" {he3} asked. {He3} had tears in {his3}
  eyes.
- "Surprise!" they {shouted}. {Elder} {smiled} and blew out the candles.

/
- Everyone had a piece, and nobody left a crumb. "This is the best cake I have ever had," said
  {elder}.
- "It is the nicest gift of all, because you made it yourselves," said {elder}. {Bedtime}

== the broken thing
vase = vase, cup, plate, window, lamp, bowl, clock, teapot, mirror, picture frame, pot, jug
- One {time}, {hero} played with {his} {toy} in the {room}, right next to the best {vase} of the
  family. "Do not play there," {elder} had said. But {hero} forgot.
- {Elder} had a {nice} {color} {vase}. "Please be careful with it," {he3} always said. One {time},
  {hero} [ran|jumped|danced] around the table.

- Crash! The {vase} fell down and broke into {number} pieces.
- {Suddenly} there was a loud crack. The {vase} was broken!

/
- {hero} was {scared}. {He} hid the pieces {spot}.
- {His} face turned red. {He} put the pieces into a {container} and said nothing.

- When {elder} came home, {he3} asked, "Where is my {vase}?" "I do not know," said {hero}. "Maybe
  the {pet} broke it."
- "Who did this?" {elder} asked. {hero} looked at {his} feet. "It was the wind," {he} {whispered}.

/
- But {hero} could not eat {his} {meal}, and {he} could not sleep. There was a knot in {his} tummy.
- All {time}, {hero} felt terrible. Even {his} {best} game was no fun.

- At last {he} went to {elder}. "I broke the {vase}, and I told a lie," {he} said. "I am so sorry."
- {Later} {he} could not stand it anymore. "{mom}, it was me," {he} said, and {he} {cried}.

/
- {Elder} {hugged} {him}. "I am sad about the {vase}," {he3} said. "But I am happy that you told me
  the truth."
- "Thank you for telling me," {elder} said {softly}. "A {vase} can be mended. Trust is much harder
  to mend."

- Together they glued the pieces. The {vase} had cracks now, but {elder} liked it even more.
- {hero} saved {his} coins and bought a new {vase} in {month}. It was {color2}.

- {hero} learned that the truth is always better than a lie. {Bedtime}
- From then on, {hero} always told the truth, even when it was hard.

== soup for a friend
hot = soup, stew, porridge, broth, pudding, chicken soup, tomato soup, oatmeal, noodle soup
- One {time}, {hero} waited for {friend}, but {friend} did not come. They had wanted to {hobby}.
- One {day}, {hero} went to the house of {friend} to play {game}. But {friend} was in bed.

- "{friend} is sick," {his2} mother said. "{He2} has a [fever|cold|sore throat|bad cough] and must
  stay in bed."
- {Friend} had a red nose and a [fever|cold|cough|headache]. "I cannot play today," {he2}
  {whispered}.

/
- {hero} felt sorry for {friend}. "What can I do to make {him2} happy?" {he} asked {elder}.
- {hero} {walked} home and {thought}. "How can I help {him2} feel better?"

- "Let us make some {hot}," said {elder}. They cut {vegetables} and {vegetables2} and put them into
  a {big} pot.
- {He} picked {flowers} and made {gift}. {Elder} cooked some {hot}.

/
- Then {hero} carried everything to {friend}. {Scene} {He} walked slowly, so that nothing would
  spill.
- It was a long way, and the [basket|pot|bag|tray] was heavy, but {hero} did not stop once.

- "{Wow}, is that for me?" asked {friend}. {He2} sat up and ate it all. Some color came back to
  {his2} cheeks.
- {Friend} [smiled|laughed|grinned] for the first time that day. "It smells so good," {he2} said.

- {hero} sat by the bed and told {him2} a funny story about a {beast} who was afraid of a {bug}.
- They looked at a book about {bird}s, and {hero} read the best parts twice.

/
- After {number} days, {friend} was well again. {Friends}
- {Later} {friend} was strong again, and they {played}. When {hero} had a cold in {month}, who do
  you think brought {him} some {hot}?

== the new baby (child)
- {hero} had a new baby [brother|sister]. Everyone came to look at the baby and brought presents.
- One {day} in {month}, mom and dad came home with a tiny baby.

- "What about me?" thought {hero}. Nobody had time to {hobby} with {him}. {He} felt {sad}.
- The baby cried all night, and mom was always {tired}. {hero} was {angry}. "I do not like the
  baby," {he} said.

/
- {He} took {his} {toy} and hid {nook}. "Nobody will miss me," {he} said.
- {He} packed a {treat} and a {wear} into a {bag}. "I will move {to_place}," {he} said.

- {Elder} found {him} there. "You were just as small," {he3} said {softly}. "I held you all night,
  and I loved you so much. I still do."
- {Elder} sat down next to {him}. "A heart is not like a {treat}," {he3} said. "When you share it,
  it does not get smaller."

/
- That {time}, the baby cried and cried. Nobody could help, not even dad.
- {Suddenly} the baby began to cry. Mom tried a song, and dad tried a bottle, but nothing helped.

- {hero} {moved} to the cradle and held out {his} {color} {toy}. "Look," {he} said. The baby stopped
  crying and laughed.
- {hero} made a funny face and sang softly. The baby became quiet and took {his} finger in its tiny
  hand.

/
- "The baby likes you best of all," said {elder}. "You must be a very special {boy}."
- "The baby knows you already," said {elder}. "You are a great help." {hero} felt very proud.

- Now {hero} was the best helper in the house. {Bedtime}
- "You can borrow my {toy}," {hero} told the baby. "When you are big, I will teach you to {skill}."

== the messy room
- {hero}'s {room} was always messy. There were {toy}s on the floor, {stuff} on the bed, and a {wear}
  on the lamp.
- {hero} did not like to clean up. {His} things lay {spot}, {spot} and {spot}.

- "Please tidy up," {elder} said. "Later," said {hero}. {He} wanted to {hobby}.
- "Clean your room before you go out," said {elder}. But {hero} only pushed everything under the
  bed.

/
- On {day}, {friend} was going to have a party, and {hero} had a gift for {him2}: {gift}. But where
  was it?
- The next {time}, {hero} wanted to take {his} {toy} {to_place}. But {he} could not find it in the
  mess.

- {He} looked {spot}. {He} looked {spot}. {He} found an old {treat} and a {bug}, but not what {he}
  wanted.
- {He} turned over the {container} and fell over a {treasure}. "Ouch, my {body}!" {he} {cried_out}.

/
- "Help me, {mom}!" {he} said. {Elder} shook {his3} head and {smiled}. "First we clean, then we will
  find it."
- {He} was almost in tears. "There is only one way," said {elder}, and gave {him} a broom.

- So {hero} put the books on the shelf, the blocks into the {container2}, and the socks into the
  drawer. It took {number} hours!
- {hero} sang while {he} worked. {He} made a pile of {stuff2}, a pile of {toy2}s, and a pile of
  clothes.

/
- And there it was, under the very last [shirt|sock|pillow|blanket]! {hero} was so {happy}.
- {Later} {he} picked up a {wear}, and there, right below it, was the thing {he} had lost.

- Since then, everything has its own place in {his} room. Well, almost everything.
- "It is much nicer like this," said {hero}. From then on, {he} tidied up every {day}.

== no coat today
wrap = coat, scarf, sweater, raincoat, jacket
- It was a cold {time} in [November|December|January|February]. "Put on your {wrap}," said {elder}.
  But {hero} did not want to.
- "You need your {wrap} today," {elder} said. {hero} stamped {his} foot. "No! It is itchy, and I do
  not like it."

- "I am not cold," {he} said, and {he} {ran} out of the door without it.
- {hero} was stubborn. When {elder} turned around, {he} hid the {wrap} {spot} and went out.

/
- {Friend} was waiting {in_place}. {Friend} wore a thick {color} {wrap}. "Are you not cold?" {he2}
  asked.
- {He} met {friend} {in_place}, and they {played}. {Friend} was warm in {his2} {color} {wrap}.

- At first it was fine. But then the wind began to blow, and {his} teeth began to chatter.
- {Later} dark clouds came, and icy rain fell. {hero} was wet from head to toe. "Brr!" {he} said.

- {His} nose turned blue, and {his} fingers hurt. {Friend} put half of {his2} {wrap} around {him}.
  "Come, let us go home."
- "I wish I had listened," {whispered} {hero}. {Friend} took {his} cold hand, and they {ran} home.

/
- {Elder} did not scold. {He3} gave {hero} {warm_thing} and {hugged} {him}.
- At home, {elder} was waiting at the door with {warm_thing}. "Achoo!" said {hero}.

- "I am sorry, {mom}. You were right," said {hero}.
- "Next time I will wear it," said {hero}. "It is better to be itchy than to be an icicle!" Everyone
  laughed.

- The next day, {hero} wore {his} {wrap}, a hat, and two pairs of socks. {He} looked as round as a
  pumpkin!
- After that, {hero} listened when {elder} gave {him} advice. {Bedtime}

== two friends and one toy
- {hero} and {friend_name} were good friends. One {time}, they found a {color} {toy} {in_place}.
- {hero} and {friend_name} often played together. One {day}, they both wanted the same {toy}. It was
  {color} and {nice}.

- "I saw it first!" said {hero}. "No, I did!" said {friend}. They both pulled as hard as they could.
- "It is mine!" {shouted} {hero}. "Give it to me!" {shouted} {friend}. Neither of them wanted to let
  go.

/
- Crack! The {toy} broke in two. Both of them fell on their bottoms.
- They pulled and pulled until, snap, a piece came off. Now nobody could play with it.

- "Look what you did!" they {shouted} at the same time. {hero} went home {angry}, and so did
  {friend}.
- {hero} {cried}, and {friend} {cried} too.

/
- At home, {hero} tried to play alone, but it was boring. {He} missed {friend}.
- "I lost my {toy} and my friend on the same day," {hero} told {elder}. "A {toy} can be fixed," said
  {elder}. "And so can a friendship."

- {He} took some glue and {stuff} and {walked} over to {friend}. "I am sorry," {he} said. "Let us
  fix it together."
- {Suddenly} there was a knock at the door. It was {friend}, with tape and {stuff} in {his2} hands.
  "I am sorry," {he2} said. "Me too," said {hero}.

- They worked side by side, and {later} the {toy} was whole again.
- It took all {time}, but then the {toy} looked almost like new.

/
- "You can have it on {day} and I on {day2}," said {hero}. And that is what they did.
- "You first," said {hero}. "No, you first," said {friend}, and they both laughed. {Friends}

== the show
- The school was going to have a show on {day}. {hero} wanted to do a {song_thing}.
- "Who wants to be in the show?" asked the teacher. {hero} put up {his} hand. {He} wanted to do a
  {song_thing}.

- {He} practiced in front of the mirror, in the bathtub, and for {his} {pet}.
- Every {time}, {he} practiced with {elder}. {He} even practiced in {his} sleep.

/
- But when {he} stood on the stage and saw all the faces, {his} knees began to shake. {He} forgot
  everything!
- Then the big day came. {hero} looked through the curtain and saw a hundred people. {His} mouth was
  as dry as [sand|flour|paper].

- "I cannot do it," {he} {whispered}. {He} felt so {scared}.
- {He} wanted to run away and hide {nook}.

- {Friend} was standing beside {him}. "Look only at me," {friend} {whispered}. "Pretend we are
  {in_place}."
- In the first row sat {elder}. {He3} {smiled} and put a hand on {his3} heart. {hero} remembered:
  "Just breathe."

/
- {hero} took a deep breath and began. First {his} voice was as small as a {bug}. Then it grew
  stronger and stronger.
- {He} closed {his} eyes and counted to {number}. Then {he} began, and every word came back to
  {him}.

- When it was over, it was quiet for a moment. Then everyone clapped and {shouted}, "Again, again!"
- At the end, {he} took a bow. The people stood up and clapped until their hands were red.

/
- "Were you scared?" asked {elder}. "Yes," said {hero}, "but I did it anyway." "That is what brave
  means," {elder} said.
- {hero} got a bunch of {flowers} from the teacher. {He} was so proud that {he} could not stop
  smiling.

== spilled paint
- {hero} loved to paint. One {time}, {he} painted a {color} {beast} for {elder}.
- One {day}, {hero} sat [on the porch|in the kitchen|by the window|in the shed] and painted a
  picture of a {tree} tree and a {color} sky.

- It was almost ready. Then {his} {pet} jumped on the table, and the {color2} paint fell over.
  Splash!
- {He} worked all {time}. But then {his} elbow hit the jar. The {color2} paint ran right across the
  picture.

/
- "{Ohno}! My picture is ruined!" {cried_out} {hero}. {He} wanted to tear it up.
- {hero} was so {angry} that {he} threw the brush away. A big {color2} spot was in the middle of the
  picture.

- {Friend} looked at it from the left and from the right. "I see a {animal} in that spot," {he2}
  said. "Here are its ears, and there is its tail."
- "Wait," said {elder}. "Turn it around. What do you see now?" {hero} {thought}. "It looks like a
  {animal}!" {he} said.

/
- {hero} took the brush and gave the spot two eyes and a smile. Then {he} added {flowers} and a
  {bug}.
- With a thin brush, {hero} painted legs and a nose. {Later} it was the {best} part of the picture.

- "{Wow}! This is much nicer than before," said {hero}.
- The {animal} looked as if it wanted to jump out of the paper.

/
- {Elder} hung the picture on the wall in the {room}. "I love it," {he3} said. "Sometimes a mistake
  is the beginning of something new."
- The teacher hung it in the hall, and everyone wanted to know how {hero} had done it. "It was an
  accident," {hero} laughed.

== the tooth (child)
- {hero} had a loose tooth. It wiggled when {he} talked, and it wobbled when {he} ate {meal}.
- One {time}, {hero} bit into [an apple|a carrot|a crust of bread|a cookie] and felt something
  strange. {His} tooth was loose!

- "Will it hurt?" {he} asked {elder}. {He} was a bit {scared}. "Only a tiny bit," said {elder}.
- {Friend} said, "I lost {number} teeth already. It does not hurt at all." But {hero} was not so
  sure.

/
- {He} did not want to eat. {He} did not even want a {treat}. {He} kept {his} hand over {his} mouth
  all {time}.
- {hero} only drank soup for {number} days. {He} did not want the tooth to fall out.

- Then {he} and {friend} {played} {in_place}. {hero} laughed so hard that, pop, the tooth flew out!
- {Suddenly} a {pet} ran between {his} legs. {hero} sneezed, and out came the tooth!

- "{Wow}! It did not hurt!" said {hero}, and {he} put {his} tongue into the hole. "Now I talk
  funny!"
- {He} held it up to the light. It was small and white, like a [pearl|grain of
  rice|shell|star|button].

/
- At night {he} put the tooth under {his} pillow. In the morning, there was a {shiny} coin in its
  place!
- {He} put the tooth into a little {container}. The next morning, the tooth was gone. But there was
  a {shiny} coin and a tiny letter.

- {hero} ran to show {elder}. "I hope the next one is loose soon!" {he} said.
- With the coin {he} bought a {treat} and shared it with {friend}. They both smiled, and both had a
  gap in their teeth.

== the doctor (child)
buddy = teddy bear, doll, stuffed bunny, stuffed elephant, rag doll, puppet, plush dog, toy monkey,
  stuffed penguin, woolly lamb
- {hero} had a sore {body}, so {elder} said, "We have to see the doctor. You may bring your
  {buddy}." {hero} did not want to go.
- One {day}, {hero} had to go to the doctor. {He} held {his} {buddy} very tight.

- "I do not like doctors," {he} said. "They have long needles!" {He} was {scared}.
- In the waiting room, {he} sat on the lap of {elder} and made {himself} as small as a {bug}.

/
- The doctor had a {color} coat and a {nice} smile. "{Hello}, {hero}," the doctor said. "And who is
  this?"
- The doctor came in. "Good morning! First I have to look at your {buddy}," the doctor said with a
  wink.

- The doctor put a bandage on the {buddy} and listened to its heart. "It is very brave," the doctor
  said.
- First the doctor looked into the ears of the {buddy}. "I see {number} {bug}s in there!" the doctor
  said. {hero} had to laugh.

/
- Then it was {hero}'s turn. There was a little pinch, and it was over. "Was that all?" {he} asked.
- Then the doctor looked at {his} {body}, in {his} ears, and in {his} mouth. "Say ahh!" {hero} said
  the longest ahh in the world.

- "You were braver than a {beast}," said the doctor, and gave {him} a {color} sticker.
- "All done," said the doctor. {hero} got a {yummy} lollipop and a sticker with a {animal} on it.

/
- On the way home, {hero} said, "Doctors are nice. When I am big, I want to be a doctor for
  {buddy}s." {Elder} laughed.
- At home, {hero} played doctor all {time}. {His} {pet} got {number} bandages! {Bedtime}

== too many sweets
- {Elder} baked {number} {treat}s for the party. "Take only one," {he3} said. "The others are for
  the guests."
- There was a {big} jar full of {treat}s on the shelf. "You may have one after supper," {elder} told
  {hero}.

- The {treat}s smelled so {yummy}. {hero} ate one. Then {he} thought, "One more will not matter."
- When {elder} was gone, {hero} climbed on a chair. {He} took one {treat}, and another, and another.

/
- {He} ate and ate, until all the {treat}s were gone. Only crumbs were left.
- "Just a last one," {he} said {number} times. Then the plate was empty.

- Then {his} tummy began to hurt. It was as round as a [ball|drum|pumpkin]. "Ooh," {he} said and lay
  down.
- Then {he} did not feel well. {His} face turned green, and {his} tummy growled like a {beast}.

/
- {Elder} came back and saw the crumbs on {his} chin. "Did a mouse eat my {treat}s?" {he3} asked.
- "Where are the {treat}s?" asked {elder}. {hero} wanted to say that the {pet} ate them. But that
  was not true.

- "It was me," {whispered} {hero}. "I am sorry. And my tummy hurts so much."
- {hero} began to cry. "I ate them all," {he} said. "Now there are none for the guests."

- {Elder} gave {him} some tea and rubbed {his} tummy. "I think your tummy has already told you what
  I wanted to say," {he3} said.
- "When you feel better, you can help me bake new ones," said {elder}. And {hero} did.

/
- At the party, {hero} gave everyone a {treat}. "Do you not want one?" asked {friend}. "No, thank
  you!" said {hero}.
- {hero} learned that enough is better than too much. {Bedtime}

== hide and seek
hide_box = barrel, chest, crate, basket, wheelbarrow, hollow log, wagon, big flowerpot, cart
- {hero} and {friend} played hide and seek {in_place}. {Scene}
- One {time}, {hero}, {friend} and some others played hide and seek {in_place}.

- "I will count to {number}," said {friend}. "One, two, three..." {hero} {ran} to find a good place.
- It was {friend}'s turn to seek. {hero} wanted to find the best place of all.

/
- {He} could hide {hideout}, but that was too easy. {He} could hide {hideout}, but {his} feet would
  show.
- First {he} tried {hideout}. But there was a {bug} on {his} {body}, and it tickled.

- Then {he} saw an old {hide_box}. It was just the right size. {He} climbed in and was as quiet as a
  mouse.
- At last {he} crept into a {hide_box} and pulled some leaves over {himself}. It was warm and dark
  in there.

/
- {Friend} looked {hideout} and {hideout}. "{hero}, where are you?" {he2} {shouted}. But nobody
  answered.
- {Friend} searched and searched. {He2} found {sight}, but {he2} did not find {hero}. {He2} began to
  be {scared}.

- {He2} called {elder}, and soon everyone was looking for {hero}. They looked {hideout}. They looked
  {hideout}.
- "I give up! Come out!" {friend} {shouted}. Still no answer. "Something is wrong," {he2} said.

- {Suddenly} there was a strange sound: "Chrrr, chrrr." It came from the {hide_box}. {hero} was
  asleep in it!
- Then a {pet} sniffed at the {hide_box} and {sound_animal}. They looked inside. There was {hero},
  fast asleep and snoring!

/
- {hero} rubbed {his} eyes. "Did I win?" {he} asked. Everyone had to laugh.
- "You are the best hider in the world," said {friend}. "But next time, please stay awake!" {Supper}

== mending an old toy
- {hero} had an old {toy}. It had been the {toy} of {elder}, a long time ago.
- In the {room}, {hero} found an old {toy} in a dusty {container}. It was {old} and {color}.

- One {time} it broke. A piece came off, and it did not work anymore. "We can buy a new one," said
  {friend}.
- It had a hole, and one part was missing. "Throw it away," said {friend}. "You can get a new one."

/
- But {hero} did not want a new one. "This one has a story," {he} said.
- {hero} shook {his} head. "Old things can be good things," {he} said.

- {He} took it to {neighbor}, who had a workshop full of tools. "Can you help me?" {he} asked.
- So {he} took it to old {neighbor}, who could repair everything, from clocks to shoes.

/
- "Let me see," said {neighbor}. "We need {stuff}, {stuff2}, and a lot of patience. And I need a
  helper."
- {neighbor} looked at it through thick glasses. "Hmm. I can show you how to do it yourself," {he4}
  said.

- {hero} learned to use a hammer, a saw, and a screwdriver. {He} hit {his} {body} once, but {he} did
  not give up.
- They measured, they sawed, they glued, and they painted. {hero} held the nails and passed the
  screws.

- {Later} the {toy} was ready. It had a new {color2} coat of paint, and it worked better than
  before.
- On {day}, it was done. "{Wow}!" said {hero}. "It looks like new, but it is still my old one."

/
- {Friend} came to look. "{Wow}! Where did you buy that?" {he2} asked. "Nowhere," laughed {hero}. "I
  mended it."
- {hero} thanked {neighbor} with {gift}. And when something else broke, {hero} knew what to do.

== the surprise party
- It was {hero}'s birthday. {He} woke up early and was so {happy}.
- On a {day} in {month}, {hero} had {his} birthday. {He} could not wait!

- But nobody said, "Happy birthday!" {Elder} only said, "Good morning. Eat your {meal}, please."
- {He} looked for presents {spot} and {spot}. There were none.

/
- {He} went to {friend}. "Do you know what day it is?" {he} asked. "It is {day}," said {friend}. "I
  am busy today. Bye!"
- {He} met {neighbor} on the road. "What a {nice} day," {he4} said and went on.

- "They all forgot," thought {hero}. {He} sat {hideout} and {cried}.
- {hero} was so {sad}. {He} walked {to_place} alone and looked at {sight}.

/
- When it got dark, {he} went home. The windows were black. {He} opened the door very slowly.
- {Later} {elder} called {him}. "Can you get the {container} from the {room}?" {hero} opened the
  door.

- "Surprise!" {shouted} everyone. The lights went on. There were {color} balloons, a {big} cake, and
  all {his} friends!
- "Happy birthday!" they all {shouted}. {Friend} was there, and {neighbor}, and the whole family.
  They wore paper hats.

- "You did not forget!" said {hero}. "How could we?" laughed {friend}, and gave {him} {gift}.
- {hero} laughed and cried at the same time. {Friend} gave {him} a {color2} {toy} with a bow.

/
- They played {game} first and {game2} after that, and they ate cake with {fruits} until late. It
  was the best birthday ever.
- "I thought that I was alone," {hero} told {elder} at night. "You are never alone," said {elder}.

== pride and mud
- {hero} could jump very far. "I am the best jumper in the world!" {he} told everyone.
- {hero} had a new {color} {wear}. {He} walked up and down {in_place} so that everyone could see it.

- {Friend} fell over a root, and {hero} laughed. "Ha ha, you are so clumsy!" {he} said. {Friend}
  turned red.
- "My {wear} is nicer than yours," {he} told {friend}. {Friend} looked at {his2} own old {wear2} and
  felt {sad2}.

/
- "Look at me!" {shouted} {hero}. "I can jump over this ditch with my eyes closed."
- Then they came to a big puddle. "I can jump over it," said {hero}. "Just watch!"

- {He} ran, {he} jumped, and, splash, {he} landed in the middle of the mud!
- {He} ran as fast as {he} could. But {he} slipped, and flop, {he} sat in the mud up to {his} tummy.

- Only {his} eyes were still white. Everybody laughed. {hero} wanted to disappear.
- There was mud on {his} nose, in {his} ears, and between {his} toes. Now everyone was laughing at
  {him}.

/
- Only {friend} did not laugh. {He2} held out {his2} hand. "Come, I will pull you out," {he2} said
  {softly}.
- But {friend} {ran} to {him} with a long stick. "Hold on!" {friend} said, and pulled {him} out.

- "Why do you help me? I was mean to you," said {hero}. "Because you need help," said {friend}.
- {hero} was ashamed. "I am sorry that I laughed at you," {he} said. "I will not do it again."

/
- They washed the mud off [in the river|in the pond|at the well|under the pump] and laughed about it
  together. {Friends}
- {hero} learned to be good at something without being proud of it. {Bedtime}

== feeding time (parent)
pet_name = Biscuit, Pepper, Snowball, Button, Peanut, Muffin, Coco, Patch, Cloud, Ginger, Pickle,
  Sunny, Shadow, Waffles, Honey, Bubbles, Tiger
- {hero} wanted a {pet} more than anything. "A {pet} is a lot of work," said {elder}.
- "May I have a {pet}?" {hero} asked every {time}. "You must show me that you can take care of it,"
  said {elder}.

- So {hero} learned to {chore}. {He} learned to {chore} and to {chore}, too.
- "I will show you," said {hero}. On {day}, {he} helped to {chore}. On {day2}, {he} helped to
  {chore}.

/
- Then {neighbor} had to go away for a week. "Who can look after my {pet}?" {he4} asked. "I can!"
  said {hero}.
- One {time}, {neighbor} came to the door. "I am going on a trip. Could somebody feed my {pet}?"
  {he4} asked.

- On the first day it was easy. On the second day it was still fun. On the third day {hero} wanted
  to {hobby} with {friend} and almost forgot.
- Every {time}, {hero} gave the {pet} food and fresh water. But once {friend} called, "Come and play
  {game}!" and {hero} ran outside.

- {Suddenly} {he} stopped. "The {pet} is hungry!" {he} {cried_out}, and {he} {ran} back. The {pet}
  was waiting at the door.
- In the middle of the game, {he} remembered. "I have to go," {he} told {friend}. "Somebody is
  waiting for me."

/
- When {neighbor} came back, the {pet} was fat and happy. "You did very well," {he4} said.
- At the end of the week, the {pet} did not want {hero} to leave. It lay down on {his} feet.

- {Elder} {smiled}. "I think you are ready," {he3} said. In the {container} on the table, something
  moved. It was a little {color} {pet}!
- The next day, {elder} brought home a {container} with holes in it. "Open it," {he3} said. Two
  round eyes looked at {hero}.

/
- {hero} called it {pet_name}, and {he} never once forgot to feed it.
- "I will call it {pet_name}," said {hero}, "and I will take care of it every single day."

== a letter to grandma (parent)
- {hero} missed {his} grandma, who lived far away, across the mountains.
- {His} grandma lived in another country. {hero} had not seen her for {number} months, and {he} was
  {sad}.

- "Why do you not write her a letter?" asked {elder}. So {hero} took a pencil and a sheet of paper.
- One {time}, {he} got an idea. "I will send her a letter!" {he} said.

/
- {He} wrote about {his} {pet}, about {friend}, and about how {he} had learned to {skill}.
- {He} wrote, "I am well. Yesterday we {played}. I saw {sight}. Do you still make {meal}?"

- Then {he} drew a {color} heart and put a pressed [rose|violet|daisy|tulip|poppy|leaf] into the
  envelope.
- At the bottom, {he} drew {sight} and signed {his} name in {color} letters.

- {He} put a stamp on it and dropped it into the mailbox. "How long will it take?" {he} asked.
- {He} {walked} to the post office with {friend} and gave the letter to the mailman.

/
- {hero} waited on {day}. {He} waited on {day2}. Every {time}, {he} ran to the mailbox, but it was
  empty.
- A week went by, and then another. No answer came. "Maybe it got lost," {hero} {whispered}.

- Then, one rainy {time}, there was a knock at the door. {hero} opened it. There stood {his}
  grandma, with a {color2} suitcase!
- Then the mailman came with a {big} box. In it were a {wear} that Grandma had knitted, a
  {container} of {treat}s, and a letter.

/
- "Your letter was so {nice} that I had to come myself," she said, and {hero} jumped into her arms.
- "I read your letter every evening," it said. "In {month}, I will come to see you." {hero} danced
  through the {room}.
"""
