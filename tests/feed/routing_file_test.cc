// The file of experts: what `trainer generate --save-routing` writes is given to the tokens of micro-batches.
#include "octet/feed/routing_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "support/program.h"

namespace octet::feed::routing_file_test {
namespace {

using test::TemporaryFolder;

/// Two blocks with four experts, of which a token takes two.
runtime::Routers routers() {
  return {.blocks = {0, 2}, .experts = 4, .taken = 2};
}

using Ids = std::vector<std::int32_t>;
using Experts = std::vector<std::uint16_t>;
const Ids kFirst{5, 6, 7}, kSecond{5, 6, 7, 8};
const Experts kOfFirst{0, 1, 2, 3, 1, 0, 3, 2, 2, 0, 0, 3};   // three tokens
const Experts kOfSecond{3, 0, 1, 2, 2, 1, 0, 2, 1, 3, 3, 0};  // three of four tokens

class RoutingFiles : public testing::Test {
 protected:
  RoutingFiles() : folder_("routing") {
    write({routing_head(routers()), routing_line(kFirst, kOfFirst), routing_line(kSecond, kOfSecond)});
  }
  void write(const std::vector<std::string>& lines) const {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    write_file_atomically(path_, text);
  }
  /// Returns the message of an Error (usage), with what, expected, found and place.
  static std::string refusal(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }
  static runtime::HostBatch batch_of(const std::vector<Ids>& documents) {
    runtime::HostBatch batch;
    batch.cu_seqlens.push_back(0);
    for (const Ids& ids : documents) {
      batch.rows.push_back(10 + std::ssize(batch.rows));
      runtime::add_document(batch, ids, ids);
    }
    return batch;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "experts.jsonl";
};

TEST_F(RoutingFiles, GiveTheirExpertsToTheTokensOfDocuments) {
  const RoutingFile file(path_, routers());
  // The second row is found for the first document, because it has more tokens than the first row.
  runtime::HostBatch batch = batch_of({{5, 6, 7, 8, 9}, {5, 6, 7}});
  file.add_to(batch);
  const std::vector<std::int32_t> expected{
      3, 0, 2, 1, 1, 3, -1, -1, -1, -1, 0, 1, 1, 0, 2, 0,  // block 0
      1, 2, 0, 2, 3, 0, -1, -1, -1, -1, 2, 3, 3, 2, 0, 3,  // block 2
  };
  EXPECT_EQ(batch.experts, expected);
}

TEST_F(RoutingFiles, RefuseRowsWithoutExpertsByRowAndFile) {
  const RoutingFile file(path_, routers());
  for (const Ids& ids : {Ids{5, 6}, Ids{5, 9, 7}, Ids{5, 6, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    runtime::HostBatch batch = batch_of({kFirst, ids});
    const std::string said = refusal([&] { file.add_to(batch); });
    EXPECT_NE(said.find("row 11 of the data has no experts"), std::string::npos) << said;
    EXPECT_NE(said.find(path_), std::string::npos) << said;
    data::Encoded set;
    set.append(kFirst, kFirst, 3);
    set.append(ids, ids, 4);
    const std::string at_start = refusal([&] { file.require(set); });
    EXPECT_NE(at_start.find("row 4 of the data"), std::string::npos) << at_start;
  }
  data::Encoded set;
  set.append(kSecond, kSecond, 3);
  file.require(set);
}

TEST_F(RoutingFiles, OfOtherRoutersAreRefused) {
  const runtime::Routers others[] = {{.blocks = {0, 1}, .experts = 4, .taken = 2},
                                     {.blocks = {0, 2}, .experts = 8, .taken = 2},
                                     {.blocks = {0, 2}, .experts = 4, .taken = 1},
                                     {.blocks = {0, 2, 3}, .experts = 4, .taken = 2}};
  for (const runtime::Routers& other : others) {
    const std::string said = refusal([&] { RoutingFile(path_, other); });
    EXPECT_NE(said.find("the routers of another model"), std::string::npos) << said;
    EXPECT_NE(said.find(path_ + ":1"), std::string::npos) << said;
  }
  EXPECT_NE(refusal([&] { RoutingFile(path_, {}); }).find("without experts"), std::string::npos);
}

TEST_F(RoutingFiles, DamagedLinesAreRefusedByTheirNumber) {
  const std::string head = routing_head(routers()), good = routing_line(kFirst, kOfFirst);
  const std::pair<std::vector<std::string>, std::string> rows[] = {
      {{}, ":1"},
      {{"{}"}, "another format"},
      {{head, "{"}, ":2"},
      {{head, good, "{\"ids\": []}"}, ":3"},
      {{head, "{\"ids\": [\"5\"], \"experts\": \"\"}"}, "without ids and experts"},
      {{head, routing_line(kFirst, Experts(kOfFirst.begin(), kOfFirst.begin() + 4))}, "another number"},
      {{head, routing_line(kFirst, Experts(16))}, "another number"},
  };
  for (const auto& [lines, expected] : rows) {
    write(lines);
    const std::string said = refusal([&] { RoutingFile(path_, routers()); });
    EXPECT_NE(said.find(expected), std::string::npos) << expected << "\n" << said;
  }
  Experts unknown = kOfFirst, twice = kOfFirst;
  unknown[5] = 4, twice[5] = 1;
  std::string broken = good;
  broken[broken.find("\"experts\":\"") + 12] = '*';
  for (const std::string& line : {routing_line(kFirst, unknown), routing_line(kFirst, twice), broken}) {
    write({head, line});
    const RoutingFile file(path_, routers());
    runtime::HostBatch batch = batch_of({kFirst});
    const std::string said = refusal([&] { file.add_to(batch); });
    EXPECT_NE(said.find(path_ + ":2"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace octet::feed::routing_file_test
