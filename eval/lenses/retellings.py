"""Stories told twice: the same events in other words and with other names.

What translations are to a multilingual model, these are to one that knows simple stories only.
"""

RETELLINGS = (
    (
        "Lily had a red ball. She threw it high and it got stuck in a tree. Lily was sad. A"
        " tall man came by and shook the branch. The ball fell down and Lily thanked him.",
        "One morning Mia played with her new toy, round and red. It flew up into the leaves"
        " and did not come back. Mia began to cry. Then a kind neighbor reached up and got it"
        " for her.",
    ),
    (
        "Tom wanted a cookie before dinner. His mom said no. Tom took one anyway and his"
        " tummy hurt. He told his mom the truth. She hugged him and he said sorry.",
        "Mother told Ben to wait until they had eaten. But Ben was hungry and ate the sweet"
        " thing from the jar. Soon he felt sick. He was honest about it, and mother forgave"
        " her son.",
    ),
    (
        "A little bird fell out of its nest. Anna found it on the grass. She put it in a warm"
        " box and gave it water. The next day the bird could fly again and sang for her.",
        "On the ground under a tree Lucy saw a small animal with wings that could not get"
        " home. She made a soft bed for it and fed it. When it was strong, it flew away with a"
        " happy song.",
    ),
    (
        "It rained all day and Sam could not go outside. He was bored. His dad showed him how"
        " to make a boat of paper. They let it swim in the bath and laughed a lot.",
        "Because of the storm Max had to stay in the house. There was nothing to do. Then his"
        " father folded a little ship for him. The two of them played with it in the tub and"
        " had fun.",
    ),
    (
        "Two friends both wanted the same swing. They shouted and pushed. Then Sue had an"
        " idea. They counted to ten and took turns. Now everyone was happy.",
        "At the park Amy and Tim fought over who could go first. Both were angry and loud. In"
        " the end they decided to share and each one waited a little. After that they smiled"
        " again.",
    ),
    (
        "Jack lost his teddy bear at the store. He looked under his bed and could not sleep."
        " His mom drove back with him. The lady at the store had kept the bear safe for him.",
        "Billy could not find his favorite soft toy at night and he cried. So they went in"
        " the car to the shop once more. A nice woman there had found it and gave it back to"
        " the boy.",
    ),
    (
        "A mouse was afraid of the big lion. One day the lion was caught in a net. The mouse"
        " bit the ropes until he was free. From then on they were best friends.",
        "Everyone ran away from the king of the forest, and so did a tiny gray animal. But"
        " when hunters trapped him, the little one came and chewed the strings. He never"
        " forgot who saved him.",
    ),
    (
        "Sara planted a seed in the garden. She gave it water every day but nothing happened."
        " She waited and waited. At last a yellow flower came up and it was very pretty.",
        "In the spring Molly put something small into the dirt. Each morning she looked and"
        " saw only brown earth. She did not give up. Then one day there was a beautiful bloom"
        " like the sun.",
    ),
    (
        "Ben was scared of the dark. He saw a shape on the wall and called for his dad. Dad"
        " turned on the lamp. It was only a coat on a chair. They laughed and Ben went to"
        " sleep.",
        "At night Timmy thought there was a monster in his room. He shouted and his father"
        " came and made it bright. There was just some clothing there. Timmy was not afraid"
        " any more.",
    ),
    (
        "Mom and Jane baked a cake for grandma. Jane dropped an egg on the floor. She was"
        " worried, but mom smiled and wiped it up. Grandma loved the cake and ate two pieces.",
        "It was a birthday, and Kate helped in the kitchen to make something sweet. Oh no,"
        " what a mess she made! It was soon clean again. The old lady said it was the best she"
        " had ever had.",
    ),
    (
        "A dog found a bone and carried it over a bridge. In the water he saw another dog"
        " with a bone. He wanted that one too and barked. His bone fell into the river and was"
        " gone.",
        "Spot had something good to eat in his mouth. When he looked down at the lake, he"
        " thought that somebody there had more. He opened his mouth to take it. Then he had"
        " nothing at all.",
    ),
    (
        "Bob built a tall tower with his blocks. His baby sister bumped into it and it fell."
        " Bob was mad at first. Then they built a new one together that was even bigger.",
        "Fred had worked hard on his castle of wood. The little girl came crawling and"
        " everything crashed down. He wanted to yell. But soon both of them made another, and"
        " it was better.",
    ),
)
"""Each plot by two tellers."""
