// Arguments of `trainer generate` in the form of vLLM scripts.
#include <gtest/gtest.h>

#include "../src/cli/generate/generate_command.h"
#include "../src/cli/generate/vllm_words.h"
#include "octet/base/error.h"

namespace octet::test::vllm_words_test {
namespace {

using answers::GenerateCall;
using cli::Arguments;

struct Words {
  const char* name;
  Arguments arguments;
  std::string model;
  Arguments questions;
  std::int64_t length, batch;
  DType dtype;
  bool of_model;
};

TEST(VllmWords, MeanOptionsOfGenerate) {
  const std::vector<Words> all{
      {"a script's call",
       {"--model", "m", "--input_file", "in.jsonl", "--output_file", "out.jsonl", "--tensor_parallel_size",
        "1", "--gpu_memory_utilization", "0.9", "--max_model_len", "32768", "--trust_remote_code",
        "--enforce_eager", "False", "--dtype", "auto"},
       "m",
       {},
       32768,
       32,
       DType::f32,
       true},
      {"with hyphens and =",
       {"--model=m", "--max-model-len=64", "--trust-remote-code=true", "--enforce-eager", "--dtype=bfloat16",
        "--max_num_seqs", "7", "a question"},
       "m",
       {"a question"},
       64,
       7,
       DType::bf16,
       false},
      {"the model behind a question",
       {"a question", "--model", "m"},
       "m",
       {"a question"},
       2048,
       32,
       DType::f32,
       false},
      {"a flag before a question",
       {"m", "--trust_remote_code", "a question"},
       "m",
       {"a question"},
       2048,
       32,
       DType::f32,
       false},
      {"a flag and its word before a question",
       {"m", "--enforce_eager", "True", "true"},
       "m",
       {"true"},
       2048,
       32,
       DType::f32,
       false},
      {"this program's own words",
       {"m", "--max-length", "128", "--batch", "4", "--dtype", "float32", "q"},
       "m",
       {"q"},
       128,
       4,
       DType::f32,
       false},
  };
  for (const Words& words : all) {
    SCOPED_TRACE(words.name);
    const std::optional<GenerateCall> call = cli::read_generate_call(words.arguments);
    ASSERT_TRUE(call);
    EXPECT_EQ(call->options.model, words.model);
    EXPECT_EQ(call->options.questions, words.questions);
    EXPECT_EQ(call->options.max_length, words.length);
    EXPECT_EQ(call->options.batch, words.batch);
    EXPECT_EQ(call->options.dtype, words.dtype);
    EXPECT_EQ(call->options.dtype_of_model, words.of_model);
  }
}

TEST(VllmWords, LeaveEverythingElse) {
  const Arguments plain{"m", "--file", "a b", "--stop", "--model is a flag", "q", "-1"};
  EXPECT_EQ(cli::without_vllm_words(plain), plain);
  EXPECT_THROW(cli::read_generate_call({"m", "--dtype", "float16"}), Error);
  EXPECT_THROW(cli::read_generate_call({"--model"}), Error);
}

}  // namespace
}  // namespace octet::test::vllm_words_test
