// Row files of every kind that are truncated while they are read.
#include <gtest/gtest.h>

#include <filesystem>

#include "octet/base/mapped_files.h"
#include "octet/data/encoder.h"
#include "support/program.h"

namespace octet::data::shortened_test {
namespace shortened {
namespace {

class Characters : public Encoder {
 public:
  EncodedSample encode(const Sample& sample) const override {
    EncodedSample made;
    EncodedSample::Document document;
    document.ids.assign(sample.text.begin(), sample.text.end());
    document.labels = document.ids;
    made.documents.push_back(document);
    return made;
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
};

TEST(ShortenedRows, EndTheReadingWithTheNameOfTheFile) {
  const std::string text = "a text of some length";
  std::string lines, list = "[", cells = "text\n", texts;
  for (int i = 0; i < 2000; ++i) {
    lines += "{\"text\":\"" + text + "\"}\n";
    list += (i > 0 ? ",{\"text\":\"" : "{\"text\":\"") + text + "\"}";
    cells += text + "\n";
    texts += text + "\n";
  }
  list += "]";
  const test::TemporaryFolder folder("shortened");
  for (const auto& [name, content] : {std::pair{"a.jsonl", lines},
                                      {"b.json", list},
                                      {"b2.json", lines},
                                      {"c.csv", cells},
                                      {"d.txt", texts}}) {
    // The file loses most bytes, its last bytes, or all bytes.
    for (const std::size_t left : {std::size_t{5000}, content.size() - 30, std::size_t{0}}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(left));
      const std::string path = folder / name;
      test::spill(path, content);
      const RowMix mix(open_datasets({.dataset = {path}}), {});
      std::filesystem::resize_file(path, left);
      try {
        encode_rows(mix, Characters(), {.last_row = mix.size(), .max_broken = 1 << 20});
        ADD_FAILURE() << "the rows were encoded";
      } catch (const ShortenedFile& e) {
        EXPECT_EQ(e.code(), ExitCode::usage);
        EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace shortened
}  // namespace octet::data::shortened_test
