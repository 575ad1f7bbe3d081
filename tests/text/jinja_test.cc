// Chat templates in Jinja: the output of Python's jinja2 with transformers' settings, and limits on the work.
#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/text/jinja.h"

namespace octet::text::jinja_test {
namespace {

Json variables() {
  return {{"messages",
           {{{"role", "system"}, {"content", "Be brief."}},
            {{"role", "user"}, {"content", " Hi "}},
            {{"role", "assistant"}, {"content", "Hello"}}}},
          {"bos_token", "<s>"},
          {"n", 3}};
}

std::string render(const std::string& source) {
  return JinjaTemplate(source).render(variables());
}

std::string refusal(const std::string& source) {
  try {
    return "no error, but: " + render(source);
  } catch (const Error& e) {
    return e.what();
  }
}

struct Case {
  std::string name, source, text;
};

class Jinja : public testing::TestWithParam<Case> {};

TEST_P(Jinja, WritesWhatPythonWrites) {
  EXPECT_EQ(render(GetParam().source), GetParam().text);
}

// The expected texts come from jinja2 3.1.6 with trim_blocks, lstrip_blocks and loop controls.
INSTANTIATE_TEST_SUITE_P(
    Cases, Jinja,
    testing::Values(
        Case{"roles", "{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }};{% endfor %}",
             "[system]Be brief.;[user]Hi;[assistant]Hello;"},
        Case{"blanks", "a\n  {% if true %}\n  b\n  {% endif %}\nc {{- ' d ' -}} \n e\n", "a\n  b\nc d e"},
        Case{"kept_blanks", "a\n  {%+ if true %}b{% endif %}\n", "a\n  b"},
        Case{"comments", "a {# x #}b\n   {#- y -#}  c", "a bc"},
        Case{"raw", "{% raw %}{{ a }}{% endraw %}!", "{{ a }}!"},
        Case{"loop",
             "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}"
             "{{ loop.length }} {% endfor %}",
             "10TrueFalse3 21FalseFalse3 32FalseTrue3 "},
        Case{"loop_filter", "{% for i in range(9) if i % 3 == 1 %}{{ i }}{% else %}none{% endfor %}", "147"},
        Case{"tests_of_lists",
             "{{ 3 is in [1, 3] }}{{ 3 is not in [1] }}{{ 'a' is in {'a': 1} }}{{ [1] is eq [1] }}"
             "{{ 'x' if 2 is in [1] else 'y' }}",
             "TrueTrueTrueTruey"},
        Case{"loop_else", "{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "none"},
        Case{"break",
             "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
             "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
             "013"},
        Case{"namespace",
             "{% set ns = namespace(a=0) %}{% for i in range(4) %}{% set ns.a = ns.a + i %}"
             "{% set b = i %}{% endfor %}{{ ns.a }}{{ b is defined }}",
             "6False"},
        Case{"macro", "{% macro f(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ f(1) }}{{ f(3, y='z') }}",
             "<12><3z>"},
        Case{"slices", "{{ [1, 2, 3][::-1] }}{{ 'abcd'[1:-1] }}{{ messages[1:] | length }}{{ 'abc'[-1] }}",
             "[3, 2, 1]bc2c"},
        Case{"numbers", "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 + 2 * 3 }}",
             "3 -4 2 3.5 8 7"},
        Case{"logic",
             "{{ (1 == 1) != (2 == 3) }} {{ not n or 'x' }} {{ 'a' in 'cab' }} {{ 4 not in [1] }} "
             "{{ 'y' if n > 2 else 'z' }}{{ 'w' if false }}",
             "True x True True y"},
        Case{"tests",
             "{{ n is defined }} {{ q is defined }} {{ none is none }} {{ 'a' is string }} "
             "{{ messages is iterable }} {{ 4 is divisibleby 2 }} {{ n is odd }} {{ n is not none }}",
             "True False True True True True True True"},
        Case{"filters",
             "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | list }} "
             "{{ ['b', 'a'] | join('-') }} {{ q | default('d') }} {{ 'x' | upper }} "
             "{{ 'ab' | replace('b', 'c') }} {{ messages | first | tojson }}",
             "['user'] b-a d X ac {\"role\": \"system\", \"content\": \"Be brief.\"}"},
        Case{"json", "{{ {'a': [1, 2.5, none, true, 'ü\"']} | tojson }}{{ [1] | tojson(indent=2) }}",
             "{\"a\": [1, 2.5, null, true, \"ü\\\"\"]}[\n  1\n]"},
        Case{"methods",
             "{{ ' x '.strip() }}{{ 'a,b'.split(',')[-1] }}{{ 'ab'.startswith('a') }}"
             "{{ 'a,b,c'.split(',', 1) }}{{ {'k': 1}.get('q', 2) }}{% for k, v in {'k': 1}.items() %}{{ k "
             "}}{{ v }}{% endfor %}",
             "xbTrue['a', 'b,c']2k1"},
        Case{"print", "{{ [none, true, 'it\\'s', {'a': 'b'}] }}", "[None, True, \"it's\", {'a': 'b'}]"},
        Case{"set_block", "{% set x %}a{{ n }}{% endset %}{{ x }}{{ x | length }}", "a32"},
        Case{"generation", "{% generation %}{{ n }}{% endgeneration %}", "3"}),
    [](const auto& param) { return param.param.name; });

TEST(JinjaRefusals, NameTheLineAndWhatIsWrong) {
  for (const auto& [source, says] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{{ x", "line 2"},
           {"{% if true %}", "'endif' is missing"},
           {"{% for %}", "a name was expected"},
           {"{% include 'x' %}", "'include' is not supported"},
           {"{{ 1 | nothing }}", "there is no filter 'nothing'"},
           {"{{ 1 is nothing }}", "there is no test 'nothing'"},
           {"\n\n{{ raise_exception('no system') }}", "the template refuses: no system"},
           {"{{ q.role }}", "undefined"},
           {"{{ 'a' + 1 }}", "a number was expected"},
           {"{{ 1 // 0 }}", "divided by 0"},
           {"{{ n() }}", "cannot be called"}}) {
    const std::string message = refusal(source);
    EXPECT_NE(message.find(says), std::string::npos) << source << "\n" << message;
    EXPECT_NE(message.find("of the chat template"), std::string::npos) << source << "\n" << message;
  }
}

TEST(JinjaRefusals, WorkWithoutEndIsStopped) {
  const std::string deep(5000, '(');
  for (const std::string& source :
       {std::string("{% for i in range(99999999999) %}{% endfor %}"),
        std::string("{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}"),
        std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        std::string("{% set ns = namespace(a='aa') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}"
                    "{% endfor %}"),
        std::string(
            "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
        std::string(
            "{% set ns = namespace() %}{% for i in range(9999) %}{% set ns.a = [ns, ns] %}{% endfor %}"),
        "{{ " + deep, "{% if " + deep + " %}"}) {
    EXPECT_EQ(refusal(source).find("no error"), std::string::npos) << source.substr(0, 200);
  }
  // A value that contains itself in Python is a copy here.
  EXPECT_EQ(render("{% set l = [1] %}{% set x = l.append(l) %}{{ l }}"), "[1, [1]]");
}

}  // namespace
}  // namespace octet::text::jinja_test
