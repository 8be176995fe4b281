"""The words of prompts: common English words, most of which are one token in any vocabulary."""

_TEXT = """
able about above across act add after again against age ago air all almost along already also always among
animal another answer any appear apple area arm army around art ask autumn away baby back bad ball bank base
bear beat beautiful because become bed before begin behind believe below best better between big bird black
blood blue board boat body bone book border born both bottom box boy branch bread break bridge bright bring
brother brown build burn busy buy call capital captain car card care carry case cat catch cause cell center
century certain chair chance change check child choose church circle city class clean clear climb clock
close cloud coast coat cold color common company complete consider contain control cook cool copy corn
corner cost cotton count country course cover cow create cross crowd cry current cut dance danger dark day
dead deal deep degree depend describe desert design develop die differ dinner direct distance doctor dog
door double down draw dream dress drink drive drop dry during each early earth ease east eat edge effect egg
eight electric end enemy energy engine enjoy enough enter equal even evening event ever every example except
excite exercise expect experience eye face fact fall family famous far farm fast father fear feed feel few
field fight figure fill final find fine finger finish fire first fish fit five flat floor flow flower fly
follow food foot force forest form forward four free fresh friend front fruit full fun game garden gas
general gentle girl give glad glass gold good govern grand grass gray great green ground group grow guess
guide hair half hand happen happy hard hat head hear heart heat heavy help high hill history hold hole home
hope horse hot hour house huge human hundred hunt hurry ice idea inch include industry insect instant
interest iron island job join jump just keep key kill kind king knew know lady lake land language large last
late laugh law lay lead learn leave left leg length less letter level lie life lift light like line liquid
list listen little live local log long look lost lot love low machine main major make man many map mark
market master match material matter mean measure meat meet melody metal method middle mile milk mind mine
minute miss mix modern moment money month moon more morning most mother motion mount mountain mouth move
much music name nation natural nature near neck need neighbor never new next night nine noise north nose
note nothing notice noun now number object observe ocean offer office often oil old once one only open
operate opposite orange order other over own oxygen page paint paper parent part party pass past path
pattern pay people perhaps period person picture piece place plain plan plane planet plant play please poem
point poor position possible pound power practice prepare present press pretty print problem process produce
product proper protect prove provide pull push put question quick quiet quite race radio rain raise range
rather reach read ready real reason receive record red region remember repeat reply rest result rich ride
right ring rise river road rock room root rope rose round row rule run safe sail salt same sand save say
scale school science sea search season seat second see seed seem sell send sense sentence serve set settle
seven several shape share sharp ship shoe shop shore short shout show side sign silent silver simple since
sing single sister sit six size skill skin sky sleep slip slow small smell smile snow soft soil soldier
solution solve some son song soon sound south space speak special speed spell spend spot spread spring
square stand star start state station stay steel step stone stop store story straight strange stream street
strong student study subject sudden sugar suggest summer sun supply support sure surface surprise swim table
tail take talk tall teach team tell ten test than thank thick thin thing think third thought three through
time tiny together tone tool top total touch toward town track trade train travel tree triangle trip trouble
truck true try turn twenty two type uncle under unit until use usual valley value vary very view village
visit voice vowel wait walk wall want war warm wash watch water wave way wear weather week weight well west
wheel where while white whole wide wife wild win wind window wing winter wire wish wolf woman wonder wood
word work world write yard year yellow young
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
