"""A model's folder for programs that send text: a shape, and a tokenizer of one letter a token.

What such a model answers is the same tokens again when it comes back as text in the next prompt.
"""

import json
from pathlib import Path

REVISION = "0" * 40
LETTERS = "\n" + "".join(map(chr, range(32, 127)))
"""Those of AIPerf's texts; others have no token."""

IDS = range(len(LETTERS))


def model_folder(home: Path, shape: Path, name: str) -> Path:
    """Made in a Hugging Face cache (`HF_HOME`): AIPerf refuses a path, and needs a name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    of_name = home / "hub" / f"models--{name.replace('/', '--')}"
    folder = of_name / "snapshots" / REVISION
    folder.mkdir(parents=True, exist_ok=True)
    (of_name / "refs").mkdir(exist_ok=True)
    (of_name / "refs" / "main").write_text(REVISION)
    config = json.loads((shape / "config.json").read_text())
    ends = {"vocab_size": len(LETTERS), "bos_token_id": None, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config | ends))
    # ByteLevel has letters of its own for bytes that are none.
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    named = {bytes_of.pre_tokenize_str(it)[0][0]: at for at, it in enumerate(LETTERS)}
    made = Tokenizer(models.BPE(named, []))
    made.pre_tokenizer, made.decoder = bytes_of, decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
