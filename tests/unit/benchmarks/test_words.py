import pytest
from transformers import AutoTokenizer

from benchmarks.shapes import write_folder
from benchmarks.words import EOS, build_tokenizer, spaced, text_of
from benchmarks.works import FULL


def test_layout_of_the_docstrings():
    assert spaced(512) == range(417, 511)
    assert len(spaced(151936)) == (151936 - 935) // 2
    tokenizer = build_tokenizer(512)
    assert len(tokenizer) == 512
    tokens = tokenizer.convert_ids_to_tokens([0, 1, 2, 259, 323, 417, 418])
    assert tokens == ["<pad>", "<bos>", "<eos>", "aA", "aAaA", "ĠaAaA", "ĠaAaB"]
    assert text_of((417, 418, 510), 512) == " aAaA aAaB aBdF"


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ValueError, match="at least 325"):
        spaced(324)


@pytest.mark.parametrize(("model", "vocab"), [("tiny", 512), ("0.5b", 151936)])
def test_text_gives_exactly_its_ids_back_as_a_qwen2_folder_is_loaded(tmp_path, model, vocab):
    tokenizer = AutoTokenizer.from_pretrained(write_folder(model, tmp_path, weights=False))
    assert len(tokenizer) == vocab
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, EOS)
    prompts = FULL["G"].prompt_ids(vocab)
    texts = [text_of(ids, vocab) for ids in prompts]
    assert [tuple(ids) for ids in tokenizer(texts)["input_ids"]] == prompts
    assert tokenizer.decode(list(prompts[0])) == texts[0]
    assert tokenizer.decode([EOS, *prompts[0]], skip_special_tokens=True) == texts[0]
