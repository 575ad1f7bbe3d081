// Messages about unusable GPUs, from simulated driver answers.
#include "octet/device/gpu_choice.h"

#include <gtest/gtest.h>

namespace octet::gpu_answers_test {
namespace {

const GpuAnswers kGood{.driver = 13000,
                       .program = 13000,
                       .count = 2,
                       .ordinal = 1,
                       .name = "NVIDIA H200",
                       .capability = 90,
                       .built_for = "90a-real 80-virtual"};

TEST(GpuAnswers, OfAGpuThatCanBeUsedSayNothing) {
  EXPECT_EQ(why_not(kGood), "");
  GpuAnswers other = kGood;
  other.driver = 13010, other.capability = 100;
  EXPECT_EQ(why_not(other), "") << "newer ones do as well";
  other.driver = 13000, other.program = 13020;
  EXPECT_EQ(why_not(other), "") << "minor versions of one major version go together";
}

TEST(GpuAnswers, SayWhatIsMissing) {
  GpuAnswers none = kGood;
  none.driver = 0, none.count = 0;
  EXPECT_EQ(why_not(none), "no NVIDIA driver was found");
  GpuAnswers hidden = kGood;
  hidden.count = 0;
  EXPECT_EQ(why_not(hidden), "the NVIDIA driver shows no GPU");
  GpuAnswers beyond = kGood;
  beyond.ordinal = 2;
  EXPECT_EQ(why_not(beyond), "there is no GPU 2, the driver shows 2");
}

TEST(GpuAnswers, SayWhichDriverWouldDo) {
  GpuAnswers old = kGood;
  old.driver = 12040;
  EXPECT_EQ(why_not(old),
            "the NVIDIA driver is too old: it supports CUDA 12.4, and this program was built with CUDA 13.0, "
            "which needs driver 580 or newer");
  old.driver = 11080, old.program = 12090;
  EXPECT_NE(why_not(old).find("CUDA 12.9, which needs driver 525"), std::string::npos);
  old.driver = 13000, old.program = 14000;
  EXPECT_EQ(why_not(old),
            "the NVIDIA driver is too old: it supports CUDA 13.0, and this program was built with CUDA 14.0");
}

TEST(GpuAnswers, SayWhatAnOldGpuLacks) {
  GpuAnswers old = kGood;
  old.ordinal = 0, old.name = "Tesla V100-SXM2-32GB", old.capability = 70;
  EXPECT_EQ(why_not(old),
            "GPU 0 (Tesla V100-SXM2-32GB) has compute capability 7.0, and 8.0 (Ampere) or more is needed");
  old.built_for = "70-real";
  EXPECT_NE(why_not(old).find("8.0 (Ampere) or more is needed"), std::string::npos);
}

TEST(GpuAnswers, SayWhatTheProgramWasNotBuiltFor) {
  GpuAnswers ada = kGood;
  ada.name = "NVIDIA L40S", ada.capability = 89;
  EXPECT_EQ(why_not(ada), "");
  ada.built_for = "90a-real 90-virtual";
  EXPECT_EQ(why_not(ada),
            "GPU 1 (NVIDIA L40S) has compute capability 8.9, and this program was built for 90a-real "
            "90-virtual only (cmake -DOCTET_CUDA_ARCHITECTURES=89-real builds it for this GPU)");
}

TEST(GpuAnswers, TellWhichCodeAGpuRuns) {
  struct Row {
    const char* built_for;
    int capability, code;
  };
  for (const Row& row : std::vector<Row>{{"90a-real 80-virtual", 90, 90},
                                         {"90a-real 80-virtual", 80, 80},
                                         {"90a-real 80-virtual", 100, 80},
                                         {"80-real 86-real", 89, 86},
                                         {"86-real", 80, 0},
                                         {"90a-real", 100, 0},
                                         {"100a-real", 103, 0},
                                         {"100-real 120-real 120-virtual", 121, 120},
                                         {"80-virtual 90a-virtual", 120, 80},
                                         {"80-virtual 90-virtual", 90, 90},
                                         {"80-real 90-virtual", 89, 80},
                                         {"", 90, 0}}) {
    EXPECT_EQ(code_for(row.built_for, row.capability), row.code) << row.built_for << ", " << row.capability;
  }
}

TEST(GpuAnswers, SayWhoMultipliesFp8) {
  EXPECT_EQ(why_no_fp8("GPU 0", 89), "");
  EXPECT_EQ(why_no_fp8("GPU 0", 120), "");
  EXPECT_EQ(
      why_no_fp8("GPU 0: NVIDIA A100", 80),
      "GPU 0: NVIDIA A100 has compute capability 8.0, but GEMMs in FP8 need 8.9 (Ada, Hopper, Blackwell)");
}

TEST(GpuAnswers, RepeatTheDriversOwnWordsWhereItFails) {
  GpuAnswers broken = kGood;
  broken.count_error = "unknown error (cudaErrorUnknown)";
  EXPECT_EQ(why_not(broken), "the NVIDIA driver does not answer: unknown error (cudaErrorUnknown)");
  broken = kGood;
  broken.properties_error = "unknown error (cudaErrorUnknown)";
  EXPECT_EQ(why_not(broken), "GPU 1 does not answer: unknown error (cudaErrorUnknown)");
}

TEST(GpuAnswers, NameWhatToDoAboutAGpuThatIsFullOrTaken) {
  for (const GpuRefusal refusal : {GpuRefusal::full, GpuRefusal::taken, GpuRefusal::other}) {
    const GpuRefusalText text = text_of(refusal, "GPU 0 (NVIDIA H200)", "its own words");
    EXPECT_EQ(text.what.rfind("GPU 0 (NVIDIA H200) ", 0), 0u) << text.what;
    EXPECT_NE(text.fix.find("device: cpu"), std::string::npos) << text.fix;
    EXPECT_EQ(text.what.find("its own words") != std::string::npos, refusal == GpuRefusal::other);
  }
  EXPECT_NE(text_of(GpuRefusal::full, "GPU 0", "").what.find("too full"), std::string::npos);
}

}  // namespace
}  // namespace octet::gpu_answers_test
