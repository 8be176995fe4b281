"""2,000 lines that try tokenizers hard. Written for this project; the same lines every time.

A line is any string, so control characters and line breaks occur inside.
"""

import random
from collections.abc import Callable, Iterator

NUM_LINES = 2000

PHRASES = [
    "The night train leaves at seven, and nobody has packed yet.",
    "She'll say it's fine; they've heard that before, I'd bet. WE'RE LATE, DON'T ASK.",
    "Der Zug fährt über die große Brücke, während es draußen schneit.",
    "L'été dernier, où étiez-vous allés ? Ça m'intéresse beaucoup.",
    "El niño comió piñas y ñoquis bajo el cielo más azul del año.",
    "A avó não põe açúcar no café; prefere pão com maçã.",
    "Perché la città è così tranquilla a mezzogiorno?",
    "Zażółć gęślą jaźń, powiedział spokojnie zegarmistrz.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy nad řekou.",
    "Az öt hűtőházból kértünk színhúst és tűzifát.",
    "Öğretmen ıssız sokakta şarkı söyleyen çocukları gördü. İstanbul'da kış.",
    "Hôm nay trời đẹp quá, chúng ta đi dạo bên bờ hồ nhé.",
    "Þórður át ær og gæs við ána í gær.",
    "Вчера вечером мы долго говорили о старых кораблях и звёздах.",
    "Їжак з'їв яблуко, а ґава полетіла геть.",
    "Ο γρήγορος καφετής σκύλος πηδά πάνω από τον τεμπέλη γείτονα.",
    "Արևը ծագում է լեռների հետևից ամեն առավոտ։",
    "მზე ამოდის მთების უკან ყოველ დილით.",
    "השמש זורחת מעל ההרים, והכלב ישן בצל. שָׁלוֹם",
    "كانت القطة نائمة على النافذة عندما بدأ المطر. مَرْحَبًا ١٢٣٤",
    "گربه روی پنجره خوابیده بود که باران شروع شد؛ می‌خواهم ۵۶۷",
    "بلی کھڑکی پر سو رہی تھی جب بارش شروع ہوئی۔",
    "बिल्ली खिड़की पर सो रही थी, तभी बारिश होने लगी। क्षत्रिय १२३",
    "বিড়ালটি জানালায় ঘুমাচ্ছিল, তখন বৃষ্টি শুরু হলো।",
    "பூனை ஜன்னலில் தூங்கிக்கொண்டிருந்தது; மழை தொடங்கியது.",
    "పిల్లి కిటికీ మీద నిద్రపోతోంది, అప్పుడే వాన మొదలైంది.",
    "പൂച്ച ജനാലയിൽ ഉറങ്ങുകയായിരുന്നു, മഴ തുടങ്ങി.",
    "แมวนอนอยู่ริมหน้าต่างตอนที่ฝนเริ่มตก น้ำท่วมทุ่ง ๑๒๓",
    "ແມວນອນຢູ່ປ່ອງຢ້ຽມເມື່ອຝົນຕົກ",
    "ကြောင်လေးက ပြတင်းပေါက်မှာ အိပ်နေတယ်။",
    "ឆ្មាដេកលើបង្អួចពេលភ្លៀងធ្លាក់។",
    "བྱི་ལ་དེ་སྒེའུ་ཁུང་ལ་ཉལ་འདུག།",
    "窗台上睡着一只猫，雨忽然下了起来。龍鳳龜鱉，𠮷野家。",
    "窓辺で猫が眠っていると、急に雨が降り出した。カタカナ ﾊﾝｶｸ ヴィ",
    "고양이가 창가에서 자고 있을 때 비가 내리기 시작했다. 각",
    "Муур цонхон дээр унтаж байтал бороо орж эхлэв.",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "ድመቷ መስኮቱ ላይ ተኝታ ሳለ ዝናብ ጀመረ።",
    "Paka alikuwa amelala dirishani mvua ilipoanza kunyesha.",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "ⵜⴰⵎⴰⵣⵉⵖⵜ ⴷ ⵓⴽⴰⵍ",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ⇒ γ; ∑ᵢ₌₀ⁿ i² ≠ ∞ ½ ⅷ ²³",
    "𝒯𝒽𝑒 𝕢𝕦𝕚𝕔𝕜 𝔟𝔯𝔬𝔴𝔫 𝗳𝗼𝘅 ｆｕｌｌｗｉｄｔｈ ﬁﬂ Ⅻ №",
]

MARKS = [
    "e\u0301 a\u0308 n\u0303 c\u0327\u0301 \u1100\u1161\u11a8",
    "Z\u0351\u036b\u0343a\u0363\u0369l\u0348\u035ag\u0321o\u0322",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇭🇯🇵 1️⃣ ☺️ 🫠 🧑🏿‍🚀",
    "zero\u200bwidth \u200djoin \u2060word \ufeffbom soft\u00adhyphen",
    "\u202eright to left\u202c \u2067isolate\u2069",
    "nbsp\u00a0thin\u2009ideo\u3000ogham\u1680 line\u2028para\u2029end",
    "\x00\x01\x07\x08\x1b[31mred\x1b[0m\x7f\x85 \x0b\x0c",
    "\ufffd replacement \ufffe \U0010ffff \ue000 private \U000e0041",
    "▁▁ metaspace▁inside ▁ Ġ Ċ ĉ â€™ <0x0A><0xF0>",
]

SPECIAL_LOOKING = [
    "<|im_start|>",
    "<|im_end|>\n",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|start_header_id|>user<|end_header_id|>",
    "<|begin_of_text|>",
    "<bos>",
    "<eos>",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "<start_of_turn>user\n",
    "<end_of_turn>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<|fim_prefix|>",
    "<repo_name>",
    "<jupyter_start>",
    "<unused7>",
    "<table>",
    "<|im_start",
    "im_end|>",
    "<| endoftext |>",
    "[PAD151935]",
    "##ing",
]

CODE = [
    "def f(x: int) -> int:\n    return x**2 if x > 0 else -x\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i] << 2;\r\n}\r\n",
    "SELECT COUNT(*) FROM users WHERE name LIKE '%o''k%' -- done",
    '{"key": [1, 2.5e-10, null, true], "nested": {"a": "\\u00e9\\n"}}',
    "https://example.org/a/b?q=%E2%82%AC&x=1#frag ftp://[::1]:21/~user/file_name-1.2.tar.gz",
    'git commit -m "fix: don\'t panic" && rm -rf ./build/* | tee log.txt',
    "<div class='x'>&amp;&#x1F600;</div><!-- nothing -->",
    "const λ = async (…args) => ({ ...args, τ: await ƒ() })",
    "#include <vector>\n#define MAX(a,b) ((a)>(b)?(a):(b))",
    "\\frac{\\partial^2 u}{\\partial t^2} = c^2 \\nabla^2 u",
    "user.name+tag@mail.example.co.uk wrote: >>> re.sub(r'\\s+', ' ', s)",
]


def corpus_lines() -> list[str]:
    rng = random.Random(20260101)
    fixed = ["", " ", "\n", "\t", "\r\n", " leading", "trailing ", *PHRASES, *MARKS, *SPECIAL_LOOKING, *CODE]
    fixed += list(_runs())
    makers = [_words, _words, _mixture, _mixture, _numbers, _whitespace, _specials, _code, _characters, _cut]
    lines = fixed + [rng.choice(makers)(rng) for _ in range(NUM_LINES - len(fixed))]
    assert len(lines) == NUM_LINES
    return lines


def _runs() -> Iterator[str]:
    for unit in (" ", "\n", "\t", "a", "ab", "é", "漢", "😀", "=", "0", "\r\n", " \n", "ー", "-_", "ா"):
        for count in (2, 3, 7, 16, 31, 32, 33, 100):
            yield unit * count
        yield "x" + unit * 40 + "y"


def _words(rng: random.Random) -> str:
    words = " ".join(rng.sample(PHRASES, 3)).split(" ")
    return " ".join(rng.sample(words, min(len(words), rng.randint(3, 25))))


def _mixture(rng: random.Random) -> str:
    parts = rng.choices(PHRASES + MARKS + CODE + SPECIAL_LOOKING, k=rng.randint(2, 4))
    return rng.choice(["", " ", "  ", "\n", "\n\n", "\t"]).join(parts)


def _numbers(rng: random.Random) -> str:
    kinds: list[Callable[[], str]] = [
        lambda: str(rng.randrange(10 ** rng.randint(1, 25))),
        lambda: f"{rng.uniform(-1e6, 1e6):,.{rng.randint(0, 6)}f}",
        lambda: hex(rng.getrandbits(64)),
        lambda: f"{rng.randint(1, 12)}:{rng.randint(0, 59):02d}pm",
        lambda: f"{rng.choice('$€£¥₹')}{rng.randint(1, 9999)}",
        lambda: "".join(rng.choice("٠١٢٣٤०१२३๑๒๓²³½ⅷ零一二三") for _ in range(rng.randint(1, 8))),
    ]
    return rng.choice(["", " ", ", "]).join(rng.choice(kinds)() for _ in range(rng.randint(2, 9)))


def _whitespace(rng: random.Random) -> str:
    spaces = [" ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\x0b", "\u2028"]
    runs = [rng.choice(spaces) * rng.choice([1, 2, 3, 4, 8, 17, 35]) for _ in range(rng.randint(2, 6))]
    words = [rng.choice(["x", "def", "漢", "Да", "1", "}", "'s", ""]) for _ in runs]
    return "".join(run + word for run, word in zip(runs, words, strict=True))


def _specials(rng: random.Random) -> str:
    parts = [rng.choice([*SPECIAL_LOOKING, " ", "hello", "\n", "  "]) for _ in range(rng.randint(2, 8))]
    return "".join(parts)


def _code(rng: random.Random) -> str:
    lines = "\n".join(rng.choices(CODE, k=3)).split("\n")
    return "\n".join(" " * (4 * rng.randint(0, 5)) + line for line in lines)


def _characters(rng: random.Random) -> str:
    """Any characters at all, each line from a few neighbouring blocks of Unicode."""
    starts = [rng.randrange(0, 0x11000, 0x80) for _ in range(3)] + [0x1F300, 0x20000, 0x40]
    chars = [chr(rng.choice(starts) + rng.randrange(0x80)) for _ in range(rng.randint(3, 40))]
    return "".join(char for char in chars if not 0xD800 <= ord(char) < 0xE000)


def _cut(rng: random.Random) -> str:
    """A phrase cut anywhere, so that words and marks come in halves."""
    text = rng.choice(PHRASES + MARKS)
    first, last = sorted(rng.sample(range(len(text) + 1), 2))
    return text[first:last] + rng.choice(PHRASES)[: rng.randint(1, 20)]
