"""Renders the chart as `helm template` would, as far as its templates go, and checks what comes out.

Knows the part of Go's templates that the chart uses, and refuses the rest, so that what it does not understand does
not pass unseen. `if`, `define`, `include`, pipelines of a few functions, and whitespace trimming.
"""

import hashlib
import pathlib
import re
import sys

import yaml

CHART = pathlib.Path(sys.argv[1])
TOKEN = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.S)
WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')


def tokens(text):
    """(kind, value) pairs, whitespace trimmed as the dashes say."""
    out, at, trim = [], 0, False
    for match in TOKEN.finditer(text):
        plain = text[at : match.start()]
        plain = plain.lstrip() if trim else plain
        out.append(("text", plain.rstrip() if match[1] else plain))
        out.append(("code", match[2]))
        at, trim = match.end(), bool(match[3])
    out.append(("text", text[at:].lstrip() if trim else text[at:]))
    return out


def parse(stream, ends=("end",)):
    nodes = []
    for kind, value in stream:
        if kind == "text":
            nodes.append(("text", value))
        elif value in ends:
            return nodes
        elif value.startswith("if "):
            nodes.append(("if", value[3:], parse(stream)))
        elif value.startswith("define "):
            nodes.append(("define", value[7:].strip('"'), parse(stream)))
        else:
            assert not value.startswith(("range", "with", "else", "template")), f"not understood: {value}"
            nodes.append(("value", value))
    return nodes


def dump(value):
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=True).removesuffix("\n...\n").rstrip("\n")


def quote(value):
    return '"' + text(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def text(value):
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def indented(count, value):
    return "\n" + "\n".join(" " * count + line if line else line for line in text(value).split("\n"))


class Renderer:
    def __init__(self, values, namespace):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.root = {
            "Values": values,
            "Chart": {"AppVersion": chart["appVersion"], "Name": chart["name"]},
            "Release": {"Name": "shop", "Namespace": namespace, "Service": "Helm"},
        }
        self.defined = {}
        self.functions = {
            "quote": quote,
            "toYaml": dump,
            "nindent": indented,
            "sha256sum": lambda value: hashlib.sha256(text(value).encode()).hexdigest(),
            "default": lambda fallback, value: value or fallback,
            "add": lambda *numbers: sum(int(number) for number in numbers),
            "mul": lambda one, two: int(one) * int(two),
            "include": lambda name, _root: self.nodes(self.defined[name]),
        }

    def call(self, words, piped=None):
        """One command of a pipeline."""
        arguments = []
        while words and words[0] != "|":
            word = words.pop(0)
            if word == ")":
                break
            if word == "(":
                arguments.append(self.pipeline(words))
            elif word.startswith('"'):
                arguments.append(word[1:-1])
            elif word == ".":
                arguments.append(self.root)
            elif word.startswith("."):
                value = self.root
                for step in word[1:].split("."):
                    assert step in value, f"{word} is no value of the chart"
                    value = value[step]
                arguments.append(value)
            elif word.lstrip("-").isdigit():
                arguments.append(int(word))
            else:
                arguments.append(self.functions[word])
        if piped is not None:
            arguments.append(piped[0])
        first, *rest = arguments
        return first(*rest) if callable(first) else first

    def pipeline(self, words):
        value = self.call(words)
        while words and words[0] == "|":
            words.pop(0)
            value = self.call(words, (value,))
        return value

    def evaluate(self, code):
        return self.pipeline(WORDS.findall(code))

    def nodes(self, nodes):
        out = []
        for node in nodes:
            if node[0] == "text":
                out.append(node[1])
            elif node[0] == "value":
                out.append(text(self.evaluate(node[1])))
            elif node[0] == "if":
                if self.evaluate(node[1]):
                    out.append(self.nodes(node[2]))
            else:
                self.defined[node[1]] = node[2]
        return "".join(out)

    def render(self):
        """Every document, by kind and name."""
        documents = {}
        # Definitions first.
        for path in sorted((CHART / "templates").iterdir(), key=lambda path: (path.suffix != ".tpl", path.name)):
            rendered = self.nodes(parse(iter(tokens(path.read_text()))))
            if path.suffix != ".yaml":
                continue
            for document in yaml.safe_load_all(rendered):
                if document:
                    documents[document["kind"], document["metadata"]["name"]] = document
        return documents


def merged(base, over):
    both = dict(base)
    for key, value in over.items():
        both[key] = merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def pod_of(document):
    spec = document["spec"].get("jobTemplate", document)["spec"]
    return spec["template"]["spec"]


def check(values, expected):
    documents = Renderer(values, "default").render()
    assert sorted(kind for kind, _ in documents) == sorted(expected), sorted(documents)
    deployment = documents["Deployment", "shop-oncegate"]
    pod = pod_of(deployment)
    [container] = pod["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service = documents["Service", "shop-oncegate"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"] == "http"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    # The drain timeout runs for requests and then for deliveries.
    env = documents["ConfigMap", "shop-oncegate-env"]["data"]
    drain = int(env["ONCEGATE__SERVER__DRAIN_TIMEOUT"].removesuffix("s"))
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + 2 * drain + 10, pod["terminationGracePeriodSeconds"]
    pods = [pod] + [pod_of(document) for (kind, _), document in documents.items() if kind == "CronJob"]
    for each in pods:
        assert each["securityContext"]["runAsNonRoot"] is True
        for one in each["containers"] + each.get("initContainers", []):
            assert one["securityContext"]["readOnlyRootFilesystem"] is True
            assert one["image"] and one["args"]
            sources = {next(iter(source.values()))["name"] for source in one["envFrom"]}
            made = {name for (kind, name) in documents if kind in ("ConfigMap", "Secret")}
            assert sources <= made | {values["existingSecret"]}, sources
            assert one["volumeMounts"][0]["mountPath"] == str(pathlib.Path(env["ONCEGATE_CONFIG"]).parent)
    config = documents["ConfigMap", "shop-oncegate"]["data"]["oncegate.toml"]
    assert config.strip() == values["config"].strip()
    return documents


defaults = yaml.safe_load((CHART / "values.yaml").read_text())
check(defaults, ["ConfigMap", "ConfigMap", "Deployment", "Service"])
full = merged(
    defaults,
    {
        "existingSecret": "mine",
        "secrets": {"APP_KEY": 'a"b'},
        "env": {"ONCEGATE__TELEMETRY__LOG_FORMAT": "json"},
        "migrate": True,
        "pass": {"enabled": True},
        "service": {"annotations": {"a": "b"}},
        "podAnnotations": {"c": "d"},
        "nodeSelector": {"e": "f"},
        "tolerations": [{"key": "g", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "imagePullSecrets": [{"name": "h"}],
    },
)
documents = check(full, ["ConfigMap", "ConfigMap", "Secret", "Deployment", "Service", "CronJob"])
migrate = pod_of(documents["Deployment", "shop-oncegate"])["initContainers"][0]["args"]
flush = pod_of(documents["CronJob", "shop-oncegate-pass"])["containers"][0]["args"]
job = documents["CronJob", "shop-oncegate-pass"]["spec"]
assert job["concurrencyPolicy"] == "Forbid"
assert job["jobTemplate"]["spec"]["activeDeadlineSeconds"] > full["pass"]["maxDurationSeconds"]
assert documents["Secret", "shop-oncegate"]["stringData"] == {"APP_KEY": 'a"b'}
# For who runs them: the commands of the pods, and the configuration.
print(yaml.safe_dump({"migrate": migrate, "flush": flush}))
print("---")
print(defaults["config"])
