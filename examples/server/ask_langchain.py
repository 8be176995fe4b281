"""Call a server through LangChain: a chain of a template and a model, complete and streamed.

pip install langchain-openai
python examples/server/ask_langchain.py http://127.0.0.1:8000 MODEL
"""

import os
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


def main() -> None:
    url, model = sys.argv[1:]
    key = os.environ.get("OCTAVO_API_KEY", "none")
    llm = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, temperature=0, max_tokens=24)
    prompt = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")])
    chain = prompt | llm | StrOutputParser()
    print(chain.invoke({"country": "France"}))
    for piece in chain.stream({"country": "France"}):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
