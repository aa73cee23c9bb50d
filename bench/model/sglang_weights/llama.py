"""The one kind of model that is loaded: SGLang would import all that it has."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = LlamaForCausalLM
