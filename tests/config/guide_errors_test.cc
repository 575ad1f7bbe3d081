// Configuration errors of a guide that other trainers ignore silently. Each is reported with its place, its
// harm and its fix. Applying the fix removes the report and has its effect.
#include <algorithm>
#include <array>
#include <functional>

#include "config/support.h"
#include "octet/config/warnings.h"
#include "support/temporary_folder.h"

namespace octet::config::test::guide_errors_test {
namespace {

/// A configuration: YAML keys after the three required keys, a DeepSpeed JSON ("": none), and variables.
struct Given {
  std::string yaml, json = {};
  Environment environment = {};
};

struct GuideError {
  const char* name;
  Given wrong;
  std::string where;  ///< "DS" is replaced by the path of the DeepSpeed file
  std::string harm, mend;
  std::vector<Given> mended;
  std::function<bool(const Config&)> effect;
};

bool in_fp8(const Config& c) {
  return c.fp8 && c.fp8_statistics == "layers";
}

bool unchanged(const Config& c) {
  return c.reduce_dtype == "fp32" && !c.fp8;
}

const std::vector<GuideError>& guide_errors() {
  static const std::vector<GuideError> all{
      {"an fp8 section of DeepSpeed's, and no fp8: true",
       {"", "{\"zero_optimization\": {\"stage\": 1},\n \"fp8\": {\"enabled\": true}}"},
       "DS:2: fp8",
       "it silently ignores this one",
       "remove the section and set 'fp8: true' in the YAML",
       {{"fp8: true", "{\"zero_optimization\": {\"stage\": 1}}"}},
       [](const Config& c) { return in_fp8(c) && c.zero_stage == 1; }},
      {"the same beside fp8: true, as the guide has it",
       {"fp8: true", "{\"zero_optimization\": {\"stage\": 1},\n \"fp8\": {\"enabled\": true}}"},
       "DS:2: fp8",
       "silently ignores this one; 'fp8: true' (test.yaml:4) decides",
       "remove the section",
       {{"fp8: true", "{\"zero_optimization\": {\"stage\": 1}}"}},
       [](const Config& c) { return in_fp8(c) && c.zero_stage == 1; }},
      {"an fp8 section that asks for nothing",
       {"", "{\"fp8\": {\"enabled\": false}}"},
       "DS:1: fp8",
       "DeepSpeed has no 'fp8' section",
       "remove the section",
       {{"", "{}"}},
       unchanged},
      {"gradients that travel in fp32",
       {"", "{\n\"communication_data_type\": \"fp32\"}"},
       "DS:2: communication_data_type",
       "twice as long as bf16",
       "set reduce_dtype: bf16 (or fp8) in place of communication_data_type",
       {{"reduce_dtype: bf16", "{}"}, {"", "{\"communication_data_type\": \"bf16\"}"}},
       [](const Config& c) { return c.reduce_dtype == "bf16"; }},
      {"the guide's mend of it, which is none by itself",
       {"", "{\n\"communication_data_type\": \"auto\"}"},
       "DS:2: communication_data_type",
       "which is not set. They are sent in fp32, twice as long as in bf16",
       "set reduce_dtype: bf16 (or fp8) in the YAML",
       {{"reduce_dtype: fp8", "{\"communication_data_type\": \"auto\"}"}},
       [](const Config& c) { return c.reduce_dtype == "fp8"; }},
      {"connections that streams share",
       {"", "", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}},
       "environment CUDA_DEVICE_MAX_CONNECTIONS=1",
       "communication waits for computation; the program uses 32 instead",
       "unset CUDA_DEVICE_MAX_CONNECTIONS",
       {{""}, {"", "", {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}}},
       unchanged},
      {"the same without a GPU",
       {"device: cpu", "", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}},
       "environment CUDA_DEVICE_MAX_CONNECTIONS=1",
       "does nothing: this run computes on CPUs",
       "unset CUDA_DEVICE_MAX_CONNECTIONS",
       {{"device: cpu"}},
       unchanged},
      {"a switch for reductions in FP8 that nobody reads",
       {"", "", {{"NVTE_FP8_ALLREDUCE", "1"}}},
       "environment NVTE_FP8_ALLREDUCE=1",
       "Transformer Engine does not read it: reduce_dtype (default) decides, and gradients are sent in fp32",
       "set reduce_dtype: fp8, which sends gradients of matrices in FP8, and unset NVTE_FP8_ALLREDUCE",
       {{"reduce_dtype: fp8"}, {"reduce_dtype: fp8", "", {{"NVTE_FP8_ALLREDUCE", "1"}}}},
       [](const Config& c) { return c.reduce_dtype == "fp8"; }},
      {"the same beside DeepSpeed's word for it",
       {"", "{\"communication_data_type\": \"bf16\"}", {{"NVTE_FP8_ALLREDUCE", "1"}}},
       "environment NVTE_FP8_ALLREDUCE=1",
       "communication_data_type (DS:1) decides, and gradients are sent in bf16",
       "set reduce_dtype: fp8 in place of communication_data_type",
       {{"reduce_dtype: fp8", "{}"}},
       [](const Config& c) { return c.reduce_dtype == "fp8"; }},
      {"the same where every number of ranks gives the same bits",
       {"deterministic: strict", "", {{"NVTE_FP8_ALLREDUCE", "1"}}},
       "environment NVTE_FP8_ALLREDUCE=1",
       "gradients are sent in fp32, as 'deterministic: strict' (test.yaml:4) needs",
       "unset NVTE_FP8_ALLREDUCE",
       {{"deterministic: strict"}},
       unchanged},
      {"a backend that LLaMA-Factory does not train in FP8 with",
       {"fp8: true\nfp8_backend: torchao"},
       "test.yaml:5",
       "names a library that is not used",
       "set fp8_backend: te or native, or remove it",
       {{"fp8: true\nfp8_backend: te"}, {"fp8: true\nfp8_backend: native"}, {"fp8: true"}},
       in_fp8},
      {"attention in FP8",
       {"", "", {{"NVTE_FP8_DPA_BWD", "1"}}},
       "environment NVTE_FP8_DPA_BWD=1",
       "does nothing: attention computes in bf16 or fp32",
       "unset NVTE_FP8_DPA_BWD",
       {{""}, {"", "", {{"NVTE_FP8_DPA_BWD", "0"}}}},
       unchanged},
      {"scores scaled by layer",
       {"", "", {{"NVTE_APPLY_QK_LAYER_SCALING", "1"}}},
       "environment NVTE_APPLY_QK_LAYER_SCALING=1",
       "does nothing: scores are computed in fp32",
       "unset NVTE_APPLY_QK_LAYER_SCALING",
       {{""}, {"", "", {{"NVTE_APPLY_QK_LAYER_SCALING", "0"}}}},
       unchanged},
      {"attention with a matrix of scores",
       {"", "", {{"NVTE_FLASH_ATTN", "0"}, {"NVTE_FUSED_ATTN", "0"}}},
       "environment NVTE_FUSED_ATTN=0",
       "does nothing: attention never forms the matrix of scores",
       "unset NVTE_FUSED_ATTN",
       {{""}, {"", "", {{"NVTE_FLASH_ATTN", "1"}, {"NVTE_FUSED_ATTN", "1"}}}},
       unchanged},
      {"statistics of FP8 without FP8",
       {"", "", {{"NVTE_DEBUG", "1"}, {"NVTE_DEBUG_LEVEL", "1"}}},
       "environment NVTE_DEBUG=1, NVTE_DEBUG_LEVEL=1",
       "does nothing: there are statistics of FP8 only with fp8: true",
       "set fp8: true, or unset NVTE_DEBUG, NVTE_DEBUG_LEVEL",
       {{"fp8: true", "", {{"NVTE_DEBUG", "1"}, {"NVTE_DEBUG_LEVEL", "1"}}}, {"fp8: true"}},
       in_fp8},
      {"statistics of FP8 that are switched off",
       {"fp8: true\nfp8_statistics: none", "", {{"NVTE_DEBUG", "1"}}},
       "environment NVTE_DEBUG=1",
       "fp8_statistics: none (test.yaml:5) keeps statistics of FP8 out of the log",
       "set fp8_statistics: layers, or unset NVTE_DEBUG",
       {{"fp8: true\nfp8_statistics: layers", "", {{"NVTE_DEBUG", "1"}}}},
       in_fp8},
      {"any other variable of Transformer Engine",
       {"", "", {{"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"}}},
       "environment NVTE_ALLOW_NONDETERMINISTIC_ALGO=1",
       "does nothing: Transformer Engine is not used here",
       "unset NVTE_ALLOW_NONDETERMINISTIC_ALGO",
       {{""}},
       unchanged},
  };
  return all;
}

class GuideErrors : public testing::TestWithParam<std::size_t> {
 protected:
  octet::test::TemporaryFolder folder_{"guide_errors"};
  const std::string json_ = folder_ / "ds.json";

  Resolved resolved(const Given& given) {
    write_file_atomically(json_, given.json);
    return load_text(kBase + given.yaml, "test.yaml",
                     given.json.empty() ? Strings{} : Strings{"deepspeed=" + json_},
                     {.for_training = true, .environment = given.environment});
  }
  /// Returns all notes, warnings and errors of a configuration.
  Strings answers(const Given& given) {
    try {
      const Resolved r = resolved(given);
      Strings all = r.notes;
      all.insert(all.end(), r.warnings.begin(), r.warnings.end());
      return all;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      const Problem& p = e.problem();
      return {p.where + ": " + p.what + "; to do: " + p.fix};
    }
  }
  std::string filled(std::string text) const {
    for (std::size_t at = 0; (at = text.find("DS:", at)) != std::string::npos; at += json_.size())
      text.replace(at, 2, json_);
    return text;
  }
};

TEST_P(GuideErrors, AreToldWithPlaceHarmAndAMendThatWorks) {
  const GuideError& error = guide_errors()[GetParam()];
  SCOPED_TRACE(error.name);
  int told = 0;
  for (const std::string& answer : answers(error.wrong)) {
    const std::size_t mend = answer.find("; to do: ");
    if (mend == std::string::npos || !answer.starts_with(filled(error.where))) continue;
    ++told;
    EXPECT_SAYS(answer.substr(0, mend), filled(error.harm));
    EXPECT_TRUE(answer.substr(mend + 9).starts_with(error.mend)) << answer;
  }
  EXPECT_EQ(told, 1);
  ASSERT_FALSE(error.mended.empty());
  for (const Given& mended : error.mended) {
    const Resolved r = resolved(mended);
    for (const std::string& note : r.notes) EXPECT_FALSE(says(note, "to do: ")) << note;
    EXPECT_EQ(r.warnings, Strings{});
    EXPECT_TRUE(error.effect(r.config)) << mended.yaml << mended.json;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GuideErrors, testing::Range<std::size_t>(0, guide_errors().size()));

// A setting that has another effect than the file says gives a warning, which lint counts. An environment
// variable gives a note; an unset variable gives no warning.
TEST(GuideErrors, OfTheFileAreWarningsAndOthersAreNotes) {
  const octet::test::TemporaryFolder folder("guide_warnings");
  write_file_atomically(folder / "ds.json",
                        "{\n\"communication_data_type\": \"fp32\",\n\"fp8\": {\"enabled\": true}}");
  const std::string json = "deepspeed: " + (folder / "ds.json") + "\n";
  struct Told {
    const char* name;
    std::string yaml;
    Environment environment;
    Strings warnings, notes;  ///< one part of each
  };
  const std::vector<Told> all{
      {"the broken configuration of a guide",
       "fp8: true\nfp8_backend: torchao\n" + json,
       {},
       {"ds.json:3: fp8: DeepSpeed has no 'fp8' section", "test.yaml:5: 'fp8_backend: torchao'",
        "ds.json:2: communication_data_type: fp32"},
       {}},
      {"msamp", "fp8: true\nfp8_backend: msamp", {}, {"test.yaml:5: 'fp8_backend: msamp'"}, {}},
      {"torchao without fp8", "fp8_backend: torchao", {}, {"test.yaml:4: 'fp8_backend: torchao'"}, {}},
      {"nothing broken", "fp8: true\nfp8_backend: te\nreduce_dtype: bf16", {}, {}, {}},
      {"the variables of the guide",
       "fp8: true",
       {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}, {"NVTE_FP8_ALLREDUCE", "1"}, {"NVTE_FP8_DPA_BWD", "1"}},
       {},
       {"CUDA_DEVICE_MAX_CONNECTIONS=1: would make streams of a GPU share connections",
        "NVTE_FP8_ALLREDUCE=1: does nothing, and Transformer Engine does not read it: reduce_dtype",
        "set reduce_dtype: fp8", "NVTE_FP8_DPA_BWD=1: does nothing"}},
  };
  for (const Told& told : all) {
    SCOPED_TRACE(told.name);
    const Resolved r = load_text(kBase + told.yaml, "test.yaml", {},
                                 {.for_training = true, .environment = told.environment});
    ASSERT_EQ(r.warnings.size(), told.warnings.size());
    for (const std::string& part : told.warnings) {
      const auto has = [&](const std::string& warning) {
        return says(warning, part) && says(warning, "; to do: ");
      };
      EXPECT_EQ(std::ranges::count_if(r.warnings, has), 1) << part;
    }
    for (const std::string& part : told.notes) EXPECT_TRUE(notes(r, part)) << part;
    const Strings doubted = doubts(r);
    for (const std::string& warning : r.warnings)
      EXPECT_EQ(std::ranges::count(doubted, warning), 1) << "lint counts it";
  }
}

TEST(GuideErrors, AFormatThatStrictBitsNeedIsNoError) {
  LoadOptions options = quiet();
  for (const char* word : {"fp32", "auto"}) {
    const Resolved r =
        load_text(kBase + "deterministic: strict\ndeepspeed: {communication_data_type: " + word + "}",
                  "test.yaml", {}, options);
    EXPECT_FALSE(notes(r, "reduce_dtype")) << word;
  }
  const Resolved stronger = load_text(kBase + "deepspeed: {communication_data_type: fp32}", "test.yaml",
                                      {"reduce_dtype=fp8"}, options);
  EXPECT_FALSE(notes(stronger, "to do: ")) << "the command line has replaced it";
}

/// Variables of guides and common habits, each with a part of its explanation.
TEST(GuideVariables, AreExplainedOnceEach) {
  const std::vector<std::array<std::string, 3>> variables{
      {"NVTE_FP8_DPA_BWD", "0", "what always happens"},
      {"NVTE_FP8_DPA_BWD", "1", "does nothing"},
      {"NVTE_APPLY_QK_LAYER_SCALING", "0", "what always happens"},
      {"NVTE_APPLY_QK_LAYER_SCALING", "1", "does nothing"},
      {"NVTE_FLASH_ATTN", "0", "does nothing"},
      {"NVTE_FLASH_ATTN", "1", "what always happens"},
      {"NVTE_FUSED_ATTN", "0", "does nothing"},
      {"NVTE_FUSED_ATTN", "1", "what always happens"},
      {"NVTE_FP8_ALLREDUCE", "0", "does nothing: reduce_dtype (default) decides"},
      {"NVTE_FP8_ALLREDUCE", "1", "does nothing"},
      {"NVTE_FP8_ALLREDUCE", "yes", "does nothing"},
      {"NVTE_DEBUG", "0", "does nothing: fp8_statistics: layers (default)"},
      {"NVTE_DEBUG_LEVEL", "2", "only with fp8: true"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "1", "the program uses 32"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "32", "is what this program sets"},
      {"CUDA_LAUNCH_BLOCKING", "0", "what always happens"},
      {"CUDA_LAUNCH_BLOCKING", "1", "harms: every kernel"},
      {"ACCELERATE_MIXED_PRECISION", "fp8", "this run computes in fp32; to do: set fp8: true, or unset"},
      {"ACCELERATE_MIXED_PRECISION", "no", "agrees with the keys bf16 and fp8"},
      {"FP8_BACKEND", "te", "fp8: true"},
      {"WORLD_SIZE", "2", "as many ranks as mpirun -np says"},
      {"RANK", "0", "as many ranks as mpirun -np says"},
      {"LOCAL_RANK", "0", "as many ranks as mpirun -np says"},
      {"LOCAL_WORLD_SIZE", "8", "as many ranks as mpirun -np says"},
      {"NODE_RANK", "0", "the hosts that mpirun's hostfile names"},
      {"NNODES", "2", "the hosts that mpirun's hostfile names"},
      {"NPROC_PER_NODE", "8", "as many ranks as mpirun -np says"},
      {"GPU_NUM", "8", "as many ranks as mpirun -np says"},
      {"FORCE_TORCHRUN", "1", "mpirun starts the ranks"},
      {"MASTER_ADDR", "a", "MPI connects the ranks"},
      {"MASTER_PORT", "29500", "MPI connects the ranks"},
      {"GLOO_SOCKET_IFNAME", "eth0", "btl_tcp_if_include"},
      {"NCCL_DEBUG", "INFO", "a variable of NCCL"},
      {"NCCL_P2P_LEVEL", "NVL", "a variable of NCCL"},
      {"NCCL_TIMEOUT", "1800", "ddp_timeout (default) is 1800 seconds"},
      {"NCCL_TIMEOUT", "3600",
       "ddp_timeout (default) is 1800 seconds; to do: set ddp_timeout: 3600, or unset"},
      {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "never fragmented"},
      {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "PyTorch is not used"},
      {"WANDB_DISABLED", "true", "nothing is uploaded"},
      {"TQDM_POSITION", "-1", "on a terminal only"},
      {"PYTHONHASHSEED", "42", "seed decides, and is 42"},
      {"TOKENIZERS_PARALLELISM", "false", "preprocessing_num_workers"},
      {"HSA_ENABLE_SDMA", "0", "a variable of ROCm"},
  };
  LoadOptions options = quiet();
  for (const auto& [name, value, part] : variables) {
    SCOPED_TRACE(name + "=" + value);
    options.environment = {{name, value}};
    const Resolved r = load_text(kBase, "test.yaml", {}, options);
    ASSERT_EQ(r.notes.size(), 1u);
    EXPECT_TRUE(r.notes.front().starts_with("environment " + name + "=" + value + ": ")) << r.notes.front();
    EXPECT_SAYS(r.notes.front(), part);
  }
}

TEST(GuideVariables, TellTheNumbersOfRanksAndHostsWhereTheyAreKnown) {
  LoadOptions options = quiet();
  options.environment = {{"WORLD_SIZE", "2"}, {"NNODES", "3"}, {"GPU_NUM", "8"}, {"NPROC_PER_NODE", "4"}};
  const Resolved r = load_text(kBase, "test.yaml", {}, options);
  const auto says_of = [&](std::int64_t ranks, std::int64_t hosts, const std::string& part) {
    return std::ranges::any_of(notes_of(r, ranks, hosts),
                               [&](const std::string& note) { return says(note, part); });
  };
  EXPECT_TRUE(says_of(1, 1, "WORLD_SIZE=2: does nothing: this run has 1 rank (mpirun -np N starts N)"));
  EXPECT_TRUE(
      says_of(16, 2, "GPU_NUM=8: does nothing: a rank computes on one GPU, and this run has 16 ranks"));
  EXPECT_TRUE(says_of(16, 2, "NNODES=3: does nothing: this run has 2 hosts"));
  EXPECT_TRUE(says_of(16, 1, "NPROC_PER_NODE=4: does nothing: this run has 16 ranks"));
  EXPECT_TRUE(says_of(16, 1, ", on 1 host ("));
  EXPECT_EQ(notes_of(r, 1, 1).size(), r.notes.size());
}

}  // namespace
}  // namespace octet::config::test::guide_errors_test
